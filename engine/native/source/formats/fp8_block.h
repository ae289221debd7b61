// e4m3 with one float32 scale per 128 x 128.
#pragma once

namespace headrace::HEADRACE_TIER {

struct Fp8Block {
  struct Row {
    const uint8_t *codes, *scales;
  };
  static constexpr bool scaled = true, global = false;
  static constexpr int chunk = FP8_BLOCK, parts = chunk / W, shares = 1;
  static constexpr int code_bytes = chunk, scale_bytes = 4;
  static HR_INLINE Row row(const Matrix &m, int64_t r) {
    return {m.weight + r * m.row_bytes, m.scale + r / FP8_BLOCK * m.scale_row_bytes};
  }
  static constexpr int place(int i) { return neighbours(i, 2); }
  template <bool full, class Part, class Close>
  static HR_INLINE void visit(const Row &row, int64_t c, int valid, Part &&part, Close &&close) {
    const uint8_t *at = row.codes + c * chunk;
    // Asked once a chunk, for half of the conversion is about a code that hardly ever comes.
    bool nan = false;
    for (int i = 0; i < chunk; i += 4 * W) nan |= any_e4m3_nan<full>(at + i, valid - i);
    if (nan)
      visit_codes<full, true>(at, valid, part);
    else
      visit_codes<full, false>(at, valid, part);
    float scale;
    std::memcpy(&scale, row.scales + c * 4, 4);
    close(broadcast(scale * 256.0f));
  }

 private:
  template <bool full, bool may_be_nan, class Part>
  static HR_INLINE void visit_codes(const uint8_t *at, int valid, Part &part) {
    for (int p = 0; p < parts; p += 2) {
      const Words two = load_words<full>(at + p * W, valid - p * W);
      part(p, e4m3_over_256<may_be_nan>(high_bytes_from_low(two)));
      part(p + 1, e4m3_over_256<may_be_nan>(two));
    }
  }
};

}  // namespace headrace::HEADRACE_TIER
