// GGUF's block formats: scales and codes of 32 or 256 columns lie together, columns in order. Rows
// are whole blocks, so that no chunk is ever partial. Products are rounded as the format's own
// definition rounds them: decoded weights are the reference's to the bit.
#pragma once

namespace headrace::HEADRACE_TIER {

struct BlockRow {
  const uint8_t *codes;
};

// 32 columns: float16 scale, 32 signed bytes.
struct Q8_0 {
  using Row = BlockRow;
  static constexpr bool scaled = true, global = false;
  static constexpr int chunk = 32, lane = 1, parts = chunk / W;
  static constexpr int code_bytes = 34, scale_bytes = 0;
  static HR_INLINE Row row(const Matrix &m, int64_t r) { return {m.weight + r * m.row_bytes}; }
  template <bool, class Visit>
  static HR_INLINE F32 visit(const Row &row, int64_t c, int, Visit &&visit) {
    const uint8_t *at = row.codes + c * code_bytes;
    for (int p = 0; p < parts; ++p) visit(p, to_f32(widen_signed(at + 2 + p * W)));
    return broadcast(half(at));
  }
};

// 32 columns: float16 scale, 16 bytes; the first half of the columns in their low nibbles.
struct Q4_0 {
  using Row = BlockRow;
  static constexpr bool scaled = true, global = false;
  static constexpr int chunk = 32, lane = 1, parts = chunk / W;
  static constexpr int code_bytes = 18, scale_bytes = 0;
  static HR_INLINE Row row(const Matrix &m, int64_t r) { return {m.weight + r * m.row_bytes}; }
  template <bool, class Visit>
  static HR_INLINE F32 visit(const Row &row, int64_t c, int, Visit &&visit) {
    const uint8_t *at = row.codes + c * code_bytes;
    constexpr int middle = parts / 2;
    for (int p = 0; p < middle; ++p)
      visit(p, nibble_less_eight(widen(at + 2 + p * W)));
    for (int p = 0; p < middle; ++p)
      visit(middle + p, nibble_less_eight(shift_right<4>(widen(at + 2 + p * W))));
    return broadcast(half(at));
  }
};

// As Q4_0, with codes from 0 and a float16 minimum behind the scale.
struct Q4_1 {
  using Row = BlockRow;
  static constexpr bool scaled = false, global = false;
  static constexpr int chunk = 32, lane = 1, parts = chunk / W;
  static constexpr int code_bytes = 20, scale_bytes = 0;
  static HR_INLINE Row row(const Matrix &m, int64_t r) { return {m.weight + r * m.row_bytes}; }
  template <bool, class Visit>
  static HR_INLINE F32 visit(const Row &row, int64_t c, int, Visit &&visit) {
    const uint8_t *at = row.codes + c * code_bytes;
    const F32 scale = broadcast(half(at)), least = broadcast(half(at + 2));
    constexpr int middle = parts / 2;
    for (int p = 0; p < middle; ++p)
      visit(p, add(mul(scale, nibble(widen(at + 4 + p * W))), least));
    for (int p = 0; p < middle; ++p)
      visit(middle + p, add(mul(scale, nibble(shift_right<4>(widen(at + 4 + p * W)))), least));
    return zero();
  }
};

// 256 columns: two float16, eight 6-bit scales and minima in 12 bytes, 128 bytes; each 32 of them
// hold one group of 32 columns in their low nibbles and the next in their high ones.
struct Q4_K {
  using Row = BlockRow;
  static constexpr bool scaled = false, global = false;
  static constexpr int chunk = 256, lane = 1, parts = chunk / W;
  static constexpr int code_bytes = 144, scale_bytes = 0;
  static HR_INLINE Row row(const Matrix &m, int64_t r) { return {m.weight + r * m.row_bytes}; }
  template <bool, class Visit>
  static HR_INLINE F32 visit(const Row &row, int64_t c, int, Visit &&visit) {
    const uint8_t *at = row.codes + c * code_bytes, *packed = at + 4;
    const float scale = half(at), least = half(at + 2);
    for (int g = 0; g < 8; g += 2) {
      F32 scales[2], minima[2];
      for (int i = 0; i < 2; ++i) {
        const int j = g + i;
        int s, m;
        if (j < 4) {
          s = packed[j] & 63;
          m = packed[j + 4] & 63;
        } else {
          s = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
          m = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
        }
        scales[i] = broadcast(scale * static_cast<float>(s));
        minima[i] = broadcast(least * static_cast<float>(m));
      }
      const uint8_t *codes = at + 16 + g * 16;
      const int p = g * 32 / W;
      constexpr int steps = 32 / W;
      for (int i = 0; i < steps; ++i) {
        const F32 low = nibble(widen(codes + i * W));
        visit(p + i, sub(mul(scales[0], low), minima[0]));
      }
      for (int i = 0; i < steps; ++i) {
        const F32 high = nibble(shift_right<4>(widen(codes + i * W)));
        visit(p + steps + i, sub(mul(scales[1], high), minima[1]));
      }
    }
    return zero();
  }
};

// 256 columns: 128 bytes of low four bits, 64 of high two bits, sixteen signed scales, a float16.
struct Q6_K {
  using Row = BlockRow;
  static constexpr bool scaled = false, global = false;
  static constexpr int chunk = 256, lane = 1, parts = chunk / W;
  static constexpr int code_bytes = 210, scale_bytes = 0;
  static HR_INLINE Row row(const Matrix &m, int64_t r) { return {m.weight + r * m.row_bytes}; }
  template <bool, class Visit>
  static HR_INLINE F32 visit(const Row &row, int64_t c, int, Visit &&visit) {
    const uint8_t *at = row.codes + c * code_bytes;
    const int8_t *scales = reinterpret_cast<const int8_t *>(at + 192);
    const float scale = half(at + 208);
    for (int h = 0; h < 2; ++h) {
      const uint8_t *low = at + h * 64, *high = at + 128 + h * 32;
      // Four runs of 32 columns: the low nibbles of 64 bytes, then their high ones; run r takes
      // bits 2r and 2r + 1 of the 32 bytes of high bits.
      const auto run = [&](int r, int i, U32 four, U32 two) {
        const int column = h * 128 + r * 32 + i;
        const F32 code = to_f32(or_u32(four, shift_left_four(and_u32(two, 3))));
        const F32 by = broadcast(scale * static_cast<float>(scales[column / 16]));
        visit(column / W, mul(by, sub(code, broadcast(32.0f))));
      };
      for (int i = 0; i < 32; i += W) run(0, i, and_u32(widen(low + i), 15), widen(high + i));
      for (int i = 0; i < 32; i += W)
        run(1, i, and_u32(widen(low + 32 + i), 15), shift_right<2>(widen(high + i)));
      for (int i = 0; i < 32; i += W)
        run(2, i, shift_right<4>(widen(low + i)), shift_right<4>(widen(high + i)));
      for (int i = 0; i < 32; i += W)
        run(3, i, shift_right<4>(widen(low + 32 + i)), shift_right<6>(widen(high + i)));
    }
    return zero();
  }
};

}  // namespace headrace::HEADRACE_TIER
