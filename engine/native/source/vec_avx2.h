// Eight lanes. Needs AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "inline.h"

namespace headrace::HEADRACE_TIER {

constexpr int W = 8;
constexpr int ROWS = 4;
constexpr int TOKENS = 2;

using F32 = __m256;
using U32 = __m256i;
using Words = __m128i;  // a 16-bit number for each lane

HR_INLINE F32 zero() { return _mm256_setzero_ps(); }
HR_INLINE U32 zero_u32() { return _mm256_setzero_si256(); }
HR_INLINE F32 broadcast(float v) { return _mm256_set1_ps(v); }
HR_INLINE F32 load_f32(const float *p) { return _mm256_loadu_ps(p); }
HR_INLINE void store_f32(float *p, F32 v) { _mm256_storeu_ps(p, v); }
HR_INLINE F32 add(F32 a, F32 b) { return _mm256_add_ps(a, b); }
HR_INLINE F32 sub(F32 a, F32 b) { return _mm256_sub_ps(a, b); }
HR_INLINE F32 mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
HR_INLINE F32 div(F32 a, F32 b) { return _mm256_div_ps(a, b); }
HR_INLINE F32 min(F32 a, F32 b) { return _mm256_min_ps(a, b); }
HR_INLINE F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
HR_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
HR_INLINE F32 nearest(F32 v) { return _mm256_round_ps(v, 8); }
HR_INLINE U32 add_u32(U32 a, U32 b) { return _mm256_add_epi32(a, b); }

// In two steps, so that neither power leaves the range of float32.
HR_INLINE F32 times_power_of_two(F32 v, F32 n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  v = mul(v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
  return mul(v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

HR_INLINE uint64_t reduce_u32(U32 v) {
  alignas(32) uint32_t lanes[W];
  _mm256_store_si256(reinterpret_cast<__m256i *>(lanes), v);
  uint32_t sum = 0;
  for (int i = 0; i < W; ++i) sum += lanes[i];
  return sum;
}

HR_INLINE float reduce(F32 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// `bytes` of a vector of `size`, zeros behind; none, if `bytes` is negative.
template <int size>
HR_INLINE void copy_first(uint8_t *to, const uint8_t *from, int bytes) {
  std::memset(to, 0, size);
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes < size ? bytes : size));
}

template <bool full>
HR_INLINE F32 load_floats(const uint8_t *p, int count) {
  if constexpr (full) return _mm256_loadu_ps(reinterpret_cast<const float *>(p));
  alignas(32) uint8_t rest[32];
  copy_first<32>(rest, p, count * 4);
  return _mm256_load_ps(reinterpret_cast<const float *>(rest));
}
template <bool full>
HR_INLINE U32 load_u32(const uint8_t *p, int bytes) {
  if constexpr (full) return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
  alignas(32) uint8_t rest[32];
  copy_first<32>(rest, p, bytes);
  return _mm256_load_si256(reinterpret_cast<const __m256i *>(rest));
}
template <bool full>
HR_INLINE Words load_words(const uint8_t *p, int bytes) {
  if constexpr (full) return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
  alignas(16) uint8_t rest[16];
  copy_first<16>(rest, p, bytes);
  return _mm_load_si128(reinterpret_cast<const __m128i *>(rest));
}

template <int n>
HR_INLINE U32 shift_right(U32 v) {
  return _mm256_srli_epi32(v, n);
}
HR_INLINE Words high_bytes_from_low(Words v) { return _mm_slli_epi16(v, 8); }

HR_INLINE F32 bf16_even(U32 v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
HR_INLINE F32 bf16_odd(U32 v) {
  return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(-65536)));
}
HR_INLINE F32 f16(Words v) { return _mm256_cvtph_ps(v); }

// As in vec_avx512.h.
template <bool may_be_nan>
HR_INLINE F32 e4m3_over_256(Words v) {
  const __m128i bits = _mm_and_si128(_mm_srai_epi16(v, 1), _mm_set1_epi16(-16512));
  if constexpr (!may_be_nan) return _mm256_cvtph_ps(bits);
  const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi16(0x3F80));
  const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x3F80));
  return _mm256_cvtph_ps(_mm_or_si128(bits, nan));
}

template <bool full>
HR_INLINE bool any_e4m3_nan(const uint8_t *p, int bytes) {
  const __m256i seven = _mm256_set1_epi8(0x7F);
  const __m256i v = _mm256_and_si256(load_u32<full>(p, bytes), seven);
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(v, seven)) != 0;
}

// Byte i in the high half of the words of lanes 2i and 2i + 1.
template <bool full>
HR_INLINE Words spread_two(const uint8_t *p, int bytes) {
  uint32_t raw = 0;
  if constexpr (full)
    std::memcpy(&raw, p, 4);
  else
    std::memcpy(&raw, p, static_cast<size_t>(bytes));
  const __m128i order = _mm_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3);
  return _mm_shuffle_epi8(_mm_cvtsi32_si128(static_cast<int>(raw)), order);
}

// The low four bits of each lane as e2m1: eight magnitudes by permutation, which looks at three
// bits, and the fourth as sign.
HR_INLINE F32 e2m1(U32 codes) {
  const F32 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(1 << 31));
  return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, codes), _mm256_castsi256_ps(sign));
}

// A power of two for each four lanes. Code 0 is a float32 subnormal, 255 is NaN.
template <bool full>
HR_INLINE F32 e8m0_for_four(const uint8_t *p, int bytes) {
  const int first = full || bytes > 0 ? p[0] : 0, second = full || bytes > 1 ? p[1] : 0;
  const __m256i codes = _mm256_setr_epi32(first, first, first, first, second, second, second, second);
  const __m256i half = _mm256_set1_epi32(0x00400000);
  const __m256i bits = _mm256_max_epi32(_mm256_slli_epi32(codes, 23), half);
  const __m256i nan = _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255));
  return _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_and_si256(nan, half)));
}

HR_INLINE float half(const uint8_t *p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return _cvtsh_ss(bits);
}
HR_INLINE U32 widen(const uint8_t *p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
}
HR_INLINE U32 widen_signed(const uint8_t *p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
}
HR_INLINE F32 to_f32(U32 v) { return _mm256_cvtepi32_ps(v); }
HR_INLINE U32 and_u32(U32 v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi32(mask)); }
HR_INLINE U32 or_u32(U32 a, U32 b) { return _mm256_or_si256(a, b); }
HR_INLINE U32 shift_left_four(U32 v) { return _mm256_slli_epi32(v, 4); }

// The low four bits of each lane, and the same less eight.
HR_INLINE F32 nibble(U32 codes) { return to_f32(and_u32(codes, 15)); }
HR_INLINE F32 nibble_less_eight(U32 codes) { return sub(nibble(codes), broadcast(8.0f)); }

}  // namespace headrace::HEADRACE_TIER
