// e2m1 and one power of two per 32 columns. Otherwise as nvfp4.h.
#pragma once

namespace headrace::HEADRACE_TIER {

struct Mxfp4 {
  struct Row {
    const uint8_t *codes, *scales;
  };
  static constexpr bool scaled = true, global = false;
  static constexpr int chunk = E2M1_CHUNK, parts = chunk / W, shares = MXFP4_SCALES;
  static constexpr int code_bytes = chunk / 2, scale_bytes = chunk / MXFP4_GROUP;
  static HR_INLINE Row row(const Matrix &m, int64_t r) {
    return {m.weight + r * m.row_bytes, m.scale + r * m.scale_row_bytes};
  }
  static constexpr int place(int i) { return e2m1_place<MXFP4_GROUP>(i); }
  template <bool full, class Part, class Close>
  static HR_INLINE void visit(const Row &row, int64_t c, int valid, Part &&part, Close &&close) {
    F32 scales[shares];
    mxfp4_scales<full>(row.scales + c * scale_bytes, valid / MXFP4_GROUP, scales);
    visit_e2m1<MXFP4_GROUP, full>(row.codes + c * code_bytes, valid / 2, [&](int p, F32 w) {
      part(p, w);
      if ((p + 1) % (parts / shares) == 0) close(scales[p / (parts / shares)]);
    });
  }
};

}  // namespace headrace::HEADRACE_TIER
