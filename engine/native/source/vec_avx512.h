// Sixteen lanes. Needs AVX-512 F, BW, DQ and VL.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "inline.h"
#include "vec_x86.h"

namespace headrace::HEADRACE_TIER {

constexpr int W = 16;
constexpr int ROWS = 4;
constexpr int TOKENS = 4;

using F32 = __m512;
using U32 = __m512i;
using Words = __m256i;  // a 16-bit number for each lane

HR_INLINE F32 zero() { return _mm512_setzero_ps(); }
HR_INLINE U32 zero_u32() { return _mm512_setzero_si512(); }
HR_INLINE F32 broadcast(float v) { return _mm512_set1_ps(v); }
HR_INLINE F32 load_f32(const float *p) { return _mm512_loadu_ps(p); }
HR_INLINE void store_f32(float *p, F32 v) { _mm512_storeu_ps(p, v); }
HR_INLINE F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
HR_INLINE F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
HR_INLINE F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
HR_INLINE F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
HR_INLINE F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
HR_INLINE F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
HR_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
HR_INLINE F32 nearest(F32 v) { return _mm512_roundscale_ps(v, 8); }
HR_INLINE F32 times_power_of_two(F32 v, F32 n) { return _mm512_scalef_ps(v, n); }
HR_INLINE U32 add_u32(U32 a, U32 b) { return _mm512_add_epi32(a, b); }
HR_INLINE uint64_t reduce_u32(U32 v) {
  return static_cast<uint32_t>(_mm512_reduce_add_epi32(v));
}

HR_INLINE float reduce(F32 v) {
  return reduce_eight(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}
HR_INLINE float greatest(F32 v) {
  return greatest_of_eight(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}

// The first `bytes` of a vector, zeros behind; none, if `bytes` is negative.
HR_INLINE uint64_t first_bits(int bytes) {
  return bytes <= 0 ? 0 : bytes >= 64 ? ~0ull : (1ull << bytes) - 1;
}

template <bool full>
HR_INLINE F32 load_floats(const uint8_t *p, int count) {
  if constexpr (full) return _mm512_loadu_ps(p);
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(first_bits(count)), p);
}
template <bool full>
HR_INLINE U32 load_u32(const uint8_t *p, int bytes) {
  if constexpr (full) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi8(first_bits(bytes), p);
}
template <bool full>
HR_INLINE Words load_words(const uint8_t *p, int bytes) {
  if constexpr (full) return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
  return _mm256_maskz_loadu_epi8(static_cast<__mmask32>(first_bits(bytes)), p);
}

template <int n>
HR_INLINE U32 shift_right(U32 v) {
  return _mm512_srli_epi32(v, n);
}
HR_INLINE Words high_bytes_from_low(Words v) { return _mm256_slli_epi16(v, 8); }

HR_INLINE F32 bf16_even(U32 v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
HR_INLINE F32 bf16_odd(U32 v) {
  return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-65536)));
}
HR_INLINE F32 f16(Words v) { return _mm512_cvtph_ps(v); }

// e4m3 in the high byte of each word, over 256: that is what its bits mean as float16, subnormals
// included, which cost nothing there. Only its NaN would be a number.
template <bool may_be_nan>
HR_INLINE F32 e4m3_over_256(Words v) {
  const __m256i bits = _mm256_and_si256(_mm256_srai_epi16(v, 1), _mm256_set1_epi16(-16512));
  if constexpr (!may_be_nan) return _mm512_cvtph_ps(bits);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x3F80));
  const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3F80));
  return _mm512_cvtph_ps(_mm256_or_si256(bits, nan));
}

template <bool full>
HR_INLINE bool any_e4m3_nan(const uint8_t *p, int bytes) {
  const __m512i seven = _mm512_set1_epi8(0x7F);
  const __m512i v = _mm512_and_si512(load_u32<full>(p, bytes), seven);
  return _mm512_cmpeq_epi8_mask(v, seven) != 0;
}

// Byte i in the high half of the words of lanes 2i and 2i + 1.
template <bool full>
HR_INLINE Words spread_two(const uint8_t *p, int bytes) {
  __m128i raw;
  if constexpr (full)
    raw = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
  else
    raw = _mm_maskz_loadu_epi8(static_cast<__mmask16>(first_bits(bytes)), p);
  const __m256i order = _mm256_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3,
                                         -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7);
  return _mm256_shuffle_epi8(_mm256_broadcastq_epi64(raw), order);
}

// --- e2m1: a lane takes the eight codes of one 32-bit word ---------------------------------------

constexpr int E2M1_CHUNK = 128, NVFP4_SCALES = 1, MXFP4_SCALES = 1;
template <int group>
constexpr int e2m1_place(int i) { return i % 8 * W + i / 8; }

// The low four bits of each lane. The permutation looks at no other bits.
HR_INLINE F32 e2m1(U32 codes) {
  const F32 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                   -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  return _mm512_permutexvar_ps(codes, table);
}

template <int group, bool full, class Visit>
HR_INLINE void visit_e2m1(const uint8_t *p, int bytes, Visit &&visit) {
  const U32 codes = load_u32<full>(p, bytes);
  visit(0, e2m1(codes));
  visit(1, e2m1(shift_right<4>(codes)));
  visit(2, e2m1(shift_right<8>(codes)));
  visit(3, e2m1(shift_right<12>(codes)));
  visit(4, e2m1(shift_right<16>(codes)));
  visit(5, e2m1(shift_right<20>(codes)));
  visit(6, e2m1(shift_right<24>(codes)));
  visit(7, e2m1(shift_right<28>(codes)));
}

template <bool full>
HR_INLINE void nvfp4_scales_over_256(const uint8_t *p, int bytes, F32 *out) {
  out[0] = e4m3_over_256<true>(spread_two<full>(p, bytes));
}

// A power of two for each four lanes. Code 0 is a float32 subnormal, 255 is NaN.
template <bool full>
HR_INLINE void mxfp4_scales(const uint8_t *p, int bytes, F32 *out) {
  int32_t raw = 0;
  if constexpr (full)
    std::memcpy(&raw, p, 4);
  else
    for (int i = 0; i < bytes; ++i) raw |= p[i] << 8 * i;
  const __m512i place = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m128i four = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(raw));
  const __m512i codes = _mm512_permutexvar_epi32(place, _mm512_castsi128_si512(four));
  const __m512i half = _mm512_set1_epi32(0x00400000);
  const __m512i bits = _mm512_max_epi32(_mm512_slli_epi32(codes, 23), half);
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(codes, _mm512_set1_epi32(255));
  out[0] = _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, nan, bits, half));
}

HR_INLINE U32 widen(const uint8_t *p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
HR_INLINE U32 widen_signed(const uint8_t *p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
// Bytes i .. i + W of these words, from registers: loads must not meet stores of other sizes.
HR_INLINE U32 widen_bytes(const uint64_t *words, int) {
  return _mm512_cvtepu8_epi32(_mm_set_epi64x(static_cast<int64_t>(words[1]),
                                             static_cast<int64_t>(words[0])));
}
HR_INLINE F32 to_f32(U32 v) { return _mm512_cvtepi32_ps(v); }

// --- 4-bit codes from 0 with a scale and a minimum -----------------------------------------------

// Four lanes of one number and four of the other in turns; the vector from lane i on.
HR_INLINE F32 four_each(float first, float second, int) {
  return _mm512_mask_blend_ps(0xF0F0, broadcast(first), broadcast(second));
}

// Two runs of sixteen bytes, the low nibbles' vectors before the high ones'. Scale and minimum are
// those of a run (by_run), or else of the low nibbles and of the high ones, `stride` floats apart.
// A weight is looked up in a table that is made for so many: the permutation looks at four bits.
constexpr int nibble_place(int byte) { return byte; }

template <bool by_run, int stride, class Visit>
HR_INLINE void visit_nibbles(const uint8_t *a, const uint8_t *b, const float *scales,
                             const float *minima, Visit &&visit) {
  const F32 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const F32 first = fma(codes, broadcast(scales[0]), broadcast(minima[0]));
  const F32 second = fma(codes, broadcast(scales[stride]), broadcast(minima[stride]));
  const U32 run_a = widen(a), run_b = widen(b);
  visit(0, _mm512_permutexvar_ps(run_a, first));
  visit(1, _mm512_permutexvar_ps(run_b, by_run ? second : first));
  visit(2, _mm512_permutexvar_ps(shift_right<4>(run_a), by_run ? first : second));
  visit(3, _mm512_permutexvar_ps(shift_right<4>(run_b), second));
}

}  // namespace headrace::HEADRACE_TIER
