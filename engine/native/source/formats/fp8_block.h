// e4m3 with one float32 scale per 128 x 128.
#pragma once

namespace headrace::HEADRACE_TIER {

struct Fp8Block {
  struct Row {
    const uint8_t *codes, *scales;
  };
  static constexpr bool scaled = true, global = false;
  static constexpr int chunk = FP8_BLOCK, lane = 2, parts = chunk / W;
  static constexpr int code_bytes = chunk, scale_bytes = 4;
  static HR_INLINE Row row(const Matrix &m, int64_t r) {
    return {m.weight + r * m.row_bytes, m.scale + r / FP8_BLOCK * m.scale_row_bytes};
  }
  template <bool full, class Visit>
  static HR_INLINE F32 visit(const Row &row, int64_t c, int valid, Visit &&visit) {
    const uint8_t *at = row.codes + c * chunk;
    // Asked once a chunk, for half of the conversion is about a code that hardly ever comes.
    bool nan = false;
    for (int i = 0; i < chunk; i += 4 * W) nan |= any_e4m3_nan<full>(at + i, valid - i);
    if (nan)
      visit_codes<full, true>(at, valid, visit);
    else
      visit_codes<full, false>(at, valid, visit);
    float scale;
    std::memcpy(&scale, row.scales + c * 4, 4);
    return broadcast(scale * 256.0f);
  }

 private:
  template <bool full, bool may_be_nan, class Visit>
  static HR_INLINE void visit_codes(const uint8_t *at, int valid, Visit &visit) {
    for (int p = 0; p < parts; p += 2) {
      const Words two = load_words<full>(at + p * W, valid - p * W);
      visit(p, e4m3_over_256<may_be_nan>(high_bytes_from_low(two)));
      visit(p + 1, e4m3_over_256<may_be_nan>(two));
    }
  }
};

}  // namespace headrace::HEADRACE_TIER
