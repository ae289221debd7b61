// Eight lanes in plain C++, for the compiler to make of them what the machine has.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "copy_first.h"
#include "inline.h"

namespace headrace::HEADRACE_TIER {

constexpr int W = 8;
constexpr int ROWS = 2;
constexpr int TOKENS = 2;

struct F32 {
  float v[W];
};
struct U32 {
  uint32_t v[W];
};
struct Words {
  uint16_t v[W];
};

#define HR_LANES for (int i = 0; i < W; ++i)

HR_INLINE F32 zero() { return F32{}; }
HR_INLINE U32 zero_u32() { return U32{}; }
HR_INLINE F32 broadcast(float x) {
  F32 r;
  HR_LANES r.v[i] = x;
  return r;
}
HR_INLINE F32 load_f32(const float *p) {
  F32 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
HR_INLINE void store_f32(float *p, F32 a) { std::memcpy(p, a.v, sizeof a.v); }

#define HR_BINARY(name, expression)   \
  HR_INLINE F32 name(F32 a, F32 b) {  \
    F32 r;                            \
    HR_LANES r.v[i] = expression;     \
    return r;                         \
  }
HR_BINARY(add, a.v[i] + b.v[i])
HR_BINARY(sub, a.v[i] - b.v[i])
HR_BINARY(mul, a.v[i] * b.v[i])
HR_BINARY(div, a.v[i] / b.v[i])
HR_BINARY(min, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
HR_BINARY(max, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
#undef HR_BINARY

// Two roundings: a fused operation without the instruction for it is a library call.
HR_INLINE F32 fma(F32 a, F32 b, F32 c) {
  F32 r;
  HR_LANES r.v[i] = a.v[i] * b.v[i] + c.v[i];
  return r;
}
HR_INLINE F32 nearest(F32 a) {
  F32 r;
  HR_LANES r.v[i] = ::nearbyintf(a.v[i]);
  return r;
}
HR_INLINE F32 times_power_of_two(F32 a, F32 n) {
  F32 r;
  HR_LANES r.v[i] = ::ldexpf(a.v[i], n.v[i] == n.v[i] ? static_cast<int>(n.v[i]) : 0);
  return r;
}
HR_INLINE U32 add_u32(U32 a, U32 b) {
  U32 r;
  HR_LANES r.v[i] = a.v[i] + b.v[i];
  return r;
}
HR_INLINE uint64_t reduce_u32(U32 a) {
  uint32_t sum = 0;
  HR_LANES sum += a.v[i];
  return sum;
}
HR_INLINE float greatest(F32 a) {
  float most = a.v[0];
  for (int i = 1; i < W; ++i) most = most > a.v[i] ? most : a.v[i];
  return most;
}
HR_INLINE float reduce(F32 a) {
  float s[4];
  for (int i = 0; i < 4; ++i) s[i] = a.v[i] + a.v[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}

template <bool full>
HR_INLINE F32 load_floats(const uint8_t *p, int count) {
  F32 r;
  copy_first<sizeof r.v>(r.v, p, full ? W * 4 : count * 4);
  return r;
}
template <bool full>
HR_INLINE U32 load_u32(const uint8_t *p, int bytes) {
  U32 r;
  copy_first<sizeof r.v>(r.v, p, full ? W * 4 : bytes);
  return r;
}
template <bool full>
HR_INLINE Words load_words(const uint8_t *p, int bytes) {
  Words r;
  copy_first<sizeof r.v>(r.v, p, full ? W * 2 : bytes);
  return r;
}

template <int n>
HR_INLINE U32 shift_right(U32 a) {
  U32 r;
  HR_LANES r.v[i] = a.v[i] >> n;
  return r;
}
HR_INLINE Words high_bytes_from_low(Words a) {
  Words r;
  HR_LANES r.v[i] = static_cast<uint16_t>(a.v[i] << 8);
  return r;
}

HR_INLINE float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
HR_INLINE F32 bf16_even(U32 a) {
  F32 r;
  HR_LANES r.v[i] = from_bits(a.v[i] << 16);
  return r;
}
HR_INLINE F32 bf16_odd(U32 a) {
  F32 r;
  HR_LANES r.v[i] = from_bits(a.v[i] & 0xFFFF0000u);
  return r;
}

// Without branches: a subnormal is its integer times a power of two.
HR_INLINE float f16_value(uint32_t h) {
  const uint32_t magnitude = h & 0x7FFF;
  const float tiny = static_cast<float>(static_cast<int>(magnitude)) * 5.9604644775390625e-8f;
  const float normal = from_bits((magnitude << 13) + (magnitude >= 0x7C00 ? 0x70000000u : 0x38000000u));
  const float value = magnitude < 0x400 ? tiny : normal;
  return h & 0x8000 ? -value : value;
}
HR_INLINE F32 f16(Words a) {
  F32 r;
  HR_LANES r.v[i] = f16_value(a.v[i]);
  return r;
}
// e4m3 in the high byte of each word, over 256.
template <bool>
HR_INLINE F32 e4m3_over_256(Words a) {
  F32 r;
  HR_LANES {
    const uint32_t magnitude = a.v[i] >> 8 & 0x7F;
    const float tiny = static_cast<float>(static_cast<int>(magnitude)) * 7.62939453125e-6f;
    const float normal =
        from_bits(magnitude == 0x7F ? 0x7FC00000u : (magnitude << 20) + 0x38000000u);
    const float value = magnitude < 8 ? tiny : normal;
    r.v[i] = a.v[i] & 0x8000 ? -value : value;
  }
  return r;
}

// Not asked here: the conversion looks at every code anyway.
template <bool full>
HR_INLINE bool any_e4m3_nan(const uint8_t *, int) {
  return false;
}

// Byte i in the high half of the words of lanes 2i and 2i + 1.
template <bool full>
HR_INLINE Words spread_two(const uint8_t *p, int bytes) {
  uint8_t raw[W / 2];
  copy_first<W / 2>(raw, p, full ? W / 2 : bytes);
  Words r;
  HR_LANES r.v[i] = static_cast<uint16_t>(raw[i / 2] << 8);
  return r;
}

// e2m1: a lane takes the eight codes of one 32-bit word.
constexpr int E2M1_CHUNK = 64, NVFP4_SCALES = 1, MXFP4_SCALES = 1;
template <int group>
constexpr int e2m1_place(int i) { return i % 8 * W + i / 8; }

// The low four bits of each lane.
HR_INLINE F32 e2m1(U32 codes) {
  static const float table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                  -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  F32 r;
  HR_LANES r.v[i] = table[codes.v[i] & 15];
  return r;
}

template <int group, bool full, class Visit>
HR_INLINE void visit_e2m1(const uint8_t *p, int bytes, Visit &&visit) {
  U32 codes = load_u32<full>(p, bytes);
  for (int i = 0; i < 8; ++i) {
    visit(i, e2m1(codes));
    codes = shift_right<4>(codes);
  }
}

template <bool full>
HR_INLINE void nvfp4_scales_over_256(const uint8_t *p, int bytes, F32 *out) {
  out[0] = e4m3_over_256<true>(spread_two<full>(p, bytes));
}

// A power of two for each four lanes. Code 0 is a float32 subnormal, 255 is NaN.
template <bool full>
HR_INLINE void mxfp4_scales(const uint8_t *p, int bytes, F32 *out) {
  uint8_t raw[W / 4];
  copy_first<W / 4>(raw, p, full ? W / 4 : bytes);
  HR_LANES {
    const uint32_t code = raw[i / 4];
    out[0].v[i] = from_bits(code == 0 ? 0x00400000u : code == 255 ? 0x7FC00000u : code << 23);
  }
}

HR_INLINE float half(const uint8_t *p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_value(bits);
}
HR_INLINE U32 widen(const uint8_t *p) {
  U32 r;
  HR_LANES r.v[i] = p[i];
  return r;
}
HR_INLINE U32 widen_signed(const uint8_t *p) {
  U32 r;
  HR_LANES r.v[i] = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int8_t>(p[i])));
  return r;
}
HR_INLINE U32 widen_bytes(const uint64_t *words, int first) {
  U32 r;
  HR_LANES r.v[i] = words[first / 8] >> 8 * i & 0xFF;
  return r;
}
HR_INLINE F32 to_f32(U32 a) {
  F32 r;
  HR_LANES r.v[i] = static_cast<float>(static_cast<int32_t>(a.v[i]));
  return r;
}

// 4-bit codes from 0 with a scale and a minimum: as in vec_avx512.h.
// Four lanes of one number and four of the other in turns; the vector from lane `first_lane` on.
HR_INLINE F32 four_each(float first, float second, int first_lane) {
  F32 r;
  HR_LANES r.v[i] = (first_lane + i) / 4 % 2 ? second : first;
  return r;
}

template <int odd>
HR_INLINE void store_halves(uint64_t words, float *out) {
  for (int i = 0; i < 4; ++i)
    out[i] = f16_value(words >> 16 * i & 0xFFFF) * (i % 2 ? static_cast<float>(odd) : 1.0f);
}

constexpr int nibble_place(int byte) { return byte; }

template <bool by_run, int stride, class Visit>
HR_INLINE void visit_nibbles(const uint8_t *a, const uint8_t *b, const float *scales,
                             const float *minima, Visit &&visit) {
  for (int p = 0; p < 64 / W; ++p) {
    const int high = p / (32 / W), run = p / (16 / W) % 2, at = (by_run ? run : high) * stride;
    const uint8_t *bytes = (run ? b : a) + p % (16 / W) * W;
    F32 r;
    HR_LANES {
      const int code = high ? bytes[i] >> 4 : bytes[i] & 15;
      r.v[i] = scales[at] * static_cast<float>(code) + minima[at];
    }
    visit(p, r);
  }
}

#undef HR_LANES

}  // namespace headrace::HEADRACE_TIER
