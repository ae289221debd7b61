// GGUF's block formats: scales and codes of 32 or 256 columns lie together, columns in order. Rows
// are whole blocks. A code times its scale has at most 24 bits, so that it is exact and a minimum
// adds the only rounding, as in the format's own definition: decoded weights are the reference's to
// the bit, fused or not.
#pragma once

namespace headrace::HEADRACE_TIER {

// 32 columns: float16 scale, 32 signed bytes.
struct Q8_0 : Codes<32, 34, 1, true> {
  static constexpr int place(int i) { return i; }
  template <bool, class Part, class Close>
  static HR_INLINE void visit(const Row &row, int64_t c, int, Part &&part, Close &&close) {
    const uint8_t *at = row.codes + c * code_bytes;
    for (int p = 0; p < parts; ++p) part(p, to_f32(widen_signed(at + 2 + p * W)));
    close(broadcast(half(at)));
  }
};

// Four blocks of 32 columns, each with `head` bytes of float16 numbers and 16 bytes of codes, the
// first half of the columns in their low nibbles.
template <int head>
using FourBlocks = Codes<128, 4 * (head + 16), W < 8 ? 2 : 16 / W, false>;

// For blocks beyond the row's end the first stands: their activations are zero.
template <class Format, int head>
struct BlockPairs : FourBlocks<head> {
  using Base = FourBlocks<head>;
  static constexpr int place(int i) {
    return i / 64 * 64 + i % 32 / 16 * 32 + nibble_place(i % 64 / 32 * 16 + i % 16);
  }
  template <bool full, class Part, class Close>
  static HR_INLINE void visit(const typename Base::Row &row, int64_t c, int valid, Part &&part,
                              Close &&close) {
    const uint8_t *at = row.codes + c * Base::code_bytes;
    const auto block = [at, valid](int i) {
      return at + (full || valid > i * 32 ? i * (head + 16) : 0);
    };
    constexpr int pairs = 2 / Base::shares;
    for (int s = 0; s < 2; s += pairs) {
      for (int i = s; i < s + pairs; ++i) {
        const uint8_t *first = block(2 * i), *second = block(2 * i + 1);
        alignas(16) float numbers[4];  // scale and minimum of the first, of the second
        Format::numbers(first, second, numbers);
        HR_IN_MEMORY(numbers);
        visit_nibbles<true, 2>(first + head, second + head, numbers, numbers + 1,
                               [&](int p, F32 w) { part(i * 64 / W + p, w); });
      }
      close();
    }
  }
};

// A float16 scale; codes less eight.
struct Q4_0 : BlockPairs<Q4_0, 2> {
  static HR_INLINE void numbers(const uint8_t *first, const uint8_t *second, float *out) {
    uint16_t scales[2];
    std::memcpy(scales, first, 2);
    std::memcpy(scales + 1, second, 2);
    store_halves<-8>(scales[0] * 0x10001ull | scales[1] * 0x10001ull << 32, out);
  }
};

// A float16 scale and a float16 minimum.
struct Q4_1 : BlockPairs<Q4_1, 4> {
  static HR_INLINE void numbers(const uint8_t *first, const uint8_t *second, float *out) {
    uint32_t words[2];
    std::memcpy(words, first, 4);
    std::memcpy(words + 1, second, 4);
    store_halves<1>(words[0] | static_cast<uint64_t>(words[1]) << 32, out);
  }
};

// 256 columns: two float16, eight 6-bit scales and minima in 12 bytes, 128 bytes; each 32 of them
// hold one group of 32 columns in their low nibbles and the next in their high ones.
struct Q4_K : Codes<256, 144, W < 8 ? 4 : 32 / W, false> {
  static constexpr int place(int i) { return i / 32 * 32 + nibble_place(i % 32); }
  template <bool, class Part, class Close>
  static HR_INLINE void visit(const Row &row, int64_t c, int, Part &&part, Close &&close) {
    const uint8_t *at = row.codes + c * code_bytes;
    alignas(64) float numbers[16];
    decode_numbers(at, numbers);
    HR_IN_MEMORY(numbers);
    constexpr int pairs = 4 / shares;
    for (int s = 0; s < 4; s += pairs) {
      for (int i = s; i < s + pairs; ++i) {
        const uint8_t *codes = at + 16 + i * 32;
        const float *pair = numbers + i / 2 * 8 + i % 2 * 2;
        visit_nibbles<false, 1>(codes, codes + 16, pair, pair + 4,
                                [&](int p, F32 w) { part(i * 64 / W + p, w); });
      }
      close();
    }
  }

 private:
  // Scales 0 .. 3, minima 0 .. 3, scales 4 .. 7, minima 4 .. 7. Their codes have six bits: those of
  // the first eight lie in the low bits of as many bytes, the low four of the others in the nibbles
  // of the last four bytes, their high two above the first eight.
  static HR_INLINE void decode_numbers(const uint8_t *at, float *numbers) {
    uint32_t halves, last;
    uint64_t codes[2], high;
    std::memcpy(&halves, at, 4);
    std::memcpy(codes, at + 4, 8);
    std::memcpy(&last, at + 12, 4);
    high = codes[0] >> 2 & 0x3030303030303030;
    codes[0] &= 0x3F3F3F3F3F3F3F3F;
    codes[1] = high | (last & 0x0F0F0F0F) | static_cast<uint64_t>(last & 0xF0F0F0F0) << 28;
    alignas(16) float by[4];
    store_halves<-1>(halves, by);
    HR_IN_MEMORY(by);
    for (int i = 0; i < 16; i += W)
      store_f32(numbers + i, mul(four_each(by[0], by[1], i), to_f32(widen_bytes(codes, i))));
  }
};

// 256 columns: 128 bytes of low four bits, 64 of high two bits, sixteen signed scales, a float16.
struct Q6_K : Codes<256, 210, 32 / W, false> {
  static constexpr int place(int i) { return i; }
  template <bool, class Part, class Close>
  static HR_INLINE void visit(const Row &row, int64_t c, int, Part &&part, Close &&close) {
    const uint8_t *at = row.codes + c * code_bytes;
    alignas(64) float by[16];
    const F32 scale = broadcast(half(at + 208));
    for (int i = 0; i < 16; i += W) store_f32(by + i, mul(scale, to_f32(widen_signed(at + 192 + i))));
    HR_IN_MEMORY(by);
    for (int h = 0; h < 2; ++h) {
      alignas(64) uint8_t codes[128];
      join(at + h * 64, at + 128 + h * 32, codes);
      for (int s = 0; s < 128; s += 8 * W) {
        for (int i = s; i < s + 8 * W; i += W)
          part((h * 128 + i) / W,
               mul(broadcast(by[h * 8 + i / 16]), to_f32(widen_signed(codes + i))));
        close();
      }
    }
  }

 private:
  // Four runs of 32 columns: the low nibbles of 64 bytes, then their high ones; run r takes bits 2r
  // and 2r + 1 of the 32 bytes of high bits. Bytes less 32.
  static HR_INLINE void join(const uint8_t *low, const uint8_t *high, uint8_t *codes) {
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<uint8_t>(((low[i] & 15) | (high[i] << 4 & 48)) - 32);
      codes[32 + i] = static_cast<uint8_t>(((low[32 + i] & 15) | (high[i] << 2 & 48)) - 32);
      codes[64 + i] = static_cast<uint8_t>((low[i] >> 4 | (high[i] & 48)) - 32);
      codes[96 + i] = static_cast<uint8_t>((low[32 + i] >> 4 | (high[i] >> 2 & 48)) - 32);
    }
  }
};

}  // namespace headrace::HEADRACE_TIER
