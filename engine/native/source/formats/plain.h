// float32, bfloat16 and float16, row after row.
#pragma once

namespace headrace::HEADRACE_TIER {

template <int bytes>
using Plain = Codes<8 * W, 8 * W * bytes, 1, false>;

struct Float32 : Plain<4> {
  static constexpr int place(int i) { return i; }
  template <bool full, class Part, class Close>
  static HR_INLINE void visit(const Row &row, int64_t c, int valid, Part &&part, Close &&close) {
    const uint8_t *at = row.codes + c * code_bytes;
    for (int p = 0; p < parts; ++p) part(p, load_floats<full>(at + p * W * 4, valid - p * W));
    close();
  }
};

struct Float16 : Plain<2> {
  static constexpr int place(int i) { return i; }
  template <bool full, class Part, class Close>
  static HR_INLINE void visit(const Row &row, int64_t c, int valid, Part &&part, Close &&close) {
    const uint8_t *at = row.codes + c * code_bytes;
    for (int p = 0; p < parts; ++p)
      part(p, f16(load_words<full>(at + p * W * 2, 2 * (valid - p * W))));
    close();
  }
};

// Two neighbours in each lane: a shift and a mask widen them where a conversion would shuffle.
struct BFloat16 : Plain<2> {
  static constexpr int place(int i) { return neighbours(i, 2); }
  template <bool full, class Part, class Close>
  static HR_INLINE void visit(const Row &row, int64_t c, int valid, Part &&part, Close &&close) {
    const uint8_t *at = row.codes + c * code_bytes;
    for (int p = 0; p < parts; p += 2) {
      const U32 two = load_u32<full>(at + p * W * 2, 2 * (valid - p * W));
      part(p, bf16_even(two));
      part(p + 1, bf16_odd(two));
    }
    close();
  }
};

}  // namespace headrace::HEADRACE_TIER
