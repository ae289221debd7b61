// e2m1, one e4m3 scale per 16 columns, one float32 for the matrix. Which lanes take which columns is
// the instruction set's choice; a lane's codes share a scale, which is applied once to their sum.
// Products with codes are exact in float32 (two bits times 24).
#pragma once

namespace headrace::HEADRACE_TIER {

struct Nvfp4 {
  struct Row {
    const uint8_t *codes, *scales;
    float global;
  };
  static constexpr bool scaled = true, global = true;
  static constexpr int chunk = E2M1_CHUNK, parts = chunk / W, shares = NVFP4_SCALES;
  static constexpr int code_bytes = chunk / 2, scale_bytes = chunk / NVFP4_GROUP;
  static HR_INLINE Row row(const Matrix &m, int64_t r) {
    return {m.weight + r * m.row_bytes, m.scale + r * m.scale_row_bytes, m.global * 256.0f};
  }
  static constexpr int place(int i) { return e2m1_place<NVFP4_GROUP>(i); }
  template <bool full, class Part, class Close>
  static HR_INLINE void visit(const Row &row, int64_t c, int valid, Part &&part, Close &&close) {
    F32 scales[shares];
    nvfp4_scales_over_256<full>(row.scales + c * scale_bytes, valid / NVFP4_GROUP, scales);
    visit_e2m1<NVFP4_GROUP, full>(row.codes + c * code_bytes, valid / 2, [&](int p, F32 w) {
      part(p, w);
      if ((p + 1) % (parts / shares) == 0) close(scales[p / (parts / shares)]);
    });
  }
};

}  // namespace headrace::HEADRACE_TIER
