// e2m1, one e4m3 scale per 16 columns, one float32 for the matrix.
//
// A lane takes the eight codes of one 32-bit word, so a group's scale belongs to two lanes and is
// applied once to a chunk's sum. Products with codes are exact in float32 (two bits times 24).
#pragma once

namespace headrace::HEADRACE_TIER {

template <class Visit>
HR_INLINE void visit_e2m1(U32 codes, Visit &visit) {
  visit(0, e2m1(codes));
  visit(1, e2m1(shift_right<4>(codes)));
  visit(2, e2m1(shift_right<8>(codes)));
  visit(3, e2m1(shift_right<12>(codes)));
  visit(4, e2m1(shift_right<16>(codes)));
  visit(5, e2m1(shift_right<20>(codes)));
  visit(6, e2m1(shift_right<24>(codes)));
  visit(7, e2m1(shift_right<28>(codes)));
}

struct Nvfp4 {
  struct Row {
    const uint8_t *codes, *scales;
    float global;
  };
  static constexpr bool scaled = true, global = true;
  static constexpr int lane = 8, parts = 8, chunk = parts * W;
  static constexpr int code_bytes = chunk / 2, scale_bytes = chunk / NVFP4_GROUP;
  static HR_INLINE Row row(const Matrix &m, int64_t r) {
    return {m.weight + r * m.row_bytes, m.scale + r * m.scale_row_bytes, m.global * 256.0f};
  }
  template <bool full, class Visit>
  static HR_INLINE F32 visit(const Row &row, int64_t c, int valid, Visit &&visit) {
    visit_e2m1(load_u32<full>(row.codes + c * code_bytes, valid / 2), visit);
    return e4m3_over_256<true>(
        spread_two<full>(row.scales + c * scale_bytes, valid / NVFP4_GROUP));
  }
};

}  // namespace headrace::HEADRACE_TIER
