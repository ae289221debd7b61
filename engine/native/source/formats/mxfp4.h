// e2m1 and one power of two per 32 columns. Lanes as in nvfp4.h: a group belongs to four of them.
#pragma once

namespace headrace::HEADRACE_TIER {

struct Mxfp4 {
  struct Row {
    const uint8_t *codes, *scales;
  };
  static constexpr bool scaled = true, global = false;
  static constexpr int lane = 8, parts = 8, chunk = parts * W;
  static constexpr int code_bytes = chunk / 2, scale_bytes = chunk / MXFP4_GROUP;
  static HR_INLINE Row row(const Matrix &m, int64_t r) {
    return {m.weight + r * m.row_bytes, m.scale + r * m.scale_row_bytes};
  }
  template <bool full, class Visit>
  static HR_INLINE F32 visit(const Row &row, int64_t c, int valid, Visit &&visit) {
    visit_e2m1(load_u32<full>(row.codes + c * code_bytes, valid / 2), visit);
    return e8m0_for_four<full>(row.scales + c * scale_bytes, valid / MXFP4_GROUP);
  }
};

}  // namespace headrace::HEADRACE_TIER
