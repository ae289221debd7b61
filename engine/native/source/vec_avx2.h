// Eight lanes. Needs AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "copy_first.h"
#include "inline.h"
#include "vec_x86.h"

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

HR_INLINE float reduce(F32 v) { return reduce_eight(v); }
HR_INLINE float greatest(F32 v) { return greatest_of_eight(v); }

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

// --- 4-bit codes by table, as halves of bfloat16 numbers -----------------------------------------

// A byte shuffle looks sixteen codes up at once, high and low bytes apart; unpacking makes words of
// them, and a shift and a mask two vectors of floats. Byte b of 32 comes to this lane of four
// vectors:
constexpr int nibble_place(int byte) {
  return byte % 16 / 8 * 2 * W + byte % 2 * W + byte / 16 * 4 + byte % 8 / 2;
}

struct WordPairs {
  U32 v[2];
};

// The high bytes of the bfloat16 numbers of sixteen codes, and the low ones.
struct Table {
  U32 high, low;
};
HR_INLINE U32 sixteen_bytes(int64_t first, int64_t second) {
  return _mm256_broadcastsi128_si256(_mm_set_epi64x(second, first));
}

HR_INLINE WordPairs look_up(U32 codes, Table table) {
  const U32 high = _mm256_shuffle_epi8(table.high, codes);
  const U32 low = _mm256_shuffle_epi8(table.low, codes);
  return {{_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)}};
}
HR_INLINE U32 low_nibbles(U32 bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
HR_INLINE U32 high_nibbles(U32 bytes) { return low_nibbles(_mm256_srli_epi16(bytes, 4)); }

// --- e4m3: 32 bytes in four vectors ---------------------------------------------------------------

constexpr int e4m3_place(int i) {
  return i / 32 * 32 + (i % 16 / 8 * 2 + i % 2) * W + i % 32 / 16 * 4 + i % 8 / 2;
}

template <bool may_be_nan, class Visit>
HR_INLINE void visit_e4m3_halves(U32 codes, int first, Visit &visit) {
  codes = _mm256_permute4x64_epi64(codes, _MM_SHUFFLE(3, 1, 2, 0));
  const Words halves[] = {_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)};
  for (int j = 0; j < 2; ++j) {
    visit(first + j * 2, e4m3_over_256<may_be_nan>(high_bytes_from_low(halves[j])));
    visit(first + j * 2 + 1, e4m3_over_256<may_be_nan>(halves[j]));
  }
}

// 128 codes over 256. A normal number's low four bits are bits of the low byte of a bfloat16 number,
// its high four, the sign among them, stand for the high byte. Others go by way of float16.
template <bool full, class Visit>
HR_INLINE void visit_e4m3(const uint8_t *p, int bytes, Visit &&visit) {
  const U32 table = sixteen_bytes(0x3F3E3D3C'3B3A3938, 0xBFBEBDBC'BBBAB9B8);
  const U32 magnitude = _mm256_set1_epi8(0x7F), one = _mm256_set1_epi8(1);
  for (int i = 0; i < 4; ++i) {
    const U32 codes = load_u32<full>(p + i * 32, bytes - i * 32);
    // Those of normal numbers are above 8 now, NaN's is zero.
    const U32 next = _mm256_and_si256(_mm256_add_epi8(codes, one), magnitude);
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi8(next, _mm256_set1_epi8(8))) != -1) [[unlikely]] {
      if (_mm256_movemask_epi8(_mm256_cmpeq_epi8(next, zero_u32())))
        visit_e4m3_halves<true>(codes, i * 4, visit);
      else
        visit_e4m3_halves<false>(codes, i * 4, visit);
      continue;
    }
    const U32 high = _mm256_shuffle_epi8(table, high_nibbles(codes));
    const U32 low = _mm256_and_si256(_mm256_slli_epi16(codes, 4), _mm256_set1_epi8(-16));
    const U32 words[] = {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
    for (int j = 0; j < 2; ++j) {
      visit(i * 4 + j * 2, bf16_even(words[j]));
      visit(i * 4 + j * 2 + 1, bf16_odd(words[j]));
    }
  }
}

// --- e2m1: twice 32 bytes, the eight codes of a 32-bit word in a lane ----------------------------

constexpr int E2M1_CHUNK = 128, NVFP4_SCALES = 2, MXFP4_SCALES = 2;
// Of a word's bytes the first two are unpacked low, the others high. Of either come the low nibbles
// of its even and of its odd byte, then the high ones.
template <int group>
constexpr int e2m1_place(int i) {
  const int byte = i % 64 / 2;
  return i / 64 * 64 + (byte % 4 / 2 * 4 + i % 2 * 2 + byte % 2) * W + byte / 4;
}

template <int group, bool full, class Visit>
HR_INLINE void visit_e2m1(const uint8_t *p, int bytes, Visit &&visit) {
  const Table table = {sixteen_bytes(0x40404040'3F3F3F00, 0xC0C0C0C0'BFBFBF80),
                       sixteen_bytes(0xC0804000'C0800000, 0xC0804000'C0800000)};
  const U32 halves_of_words = sixteen_bytes(0x0D0C0908'05040100, 0x0F0E0B0A'07060302);
  for (int i = 0; i < 2; ++i) {
    const U32 codes =
        _mm256_shuffle_epi8(load_u32<full>(p + i * 32, bytes - i * 32), halves_of_words);
    const WordPairs low = look_up(low_nibbles(codes), table);
    const WordPairs high = look_up(high_nibbles(codes), table);
    for (int j = 0; j < 2; ++j) {
      visit(i * 8 + j * 4, bf16_even(low.v[j]));
      visit(i * 8 + j * 4 + 1, bf16_odd(low.v[j]));
      visit(i * 8 + j * 4 + 2, bf16_even(high.v[j]));
      visit(i * 8 + j * 4 + 3, bf16_odd(high.v[j]));
    }
  }
}

template <bool full>
HR_INLINE void nvfp4_scales_over_256(const uint8_t *p, int bytes, F32 *out) {
  uint64_t raw = 0;
  std::memcpy(&raw, p, full ? 8 : static_cast<size_t>(bytes));
  const __m128i codes = _mm_cvtsi64_si128(static_cast<int64_t>(raw));
  const F32 scales = e4m3_over_256<true>(_mm_unpacklo_epi8(_mm_setzero_si128(), codes));
  out[0] = _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
  out[1] = _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
}

// Powers of two. Code 0 is a float32 subnormal, 255 is NaN.
template <bool full>
HR_INLINE void mxfp4_scales(const uint8_t *p, int bytes, F32 *out) {
  uint32_t raw = 0;
  std::memcpy(&raw, p, full ? 4 : static_cast<size_t>(bytes));
  const __m128i codes = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(static_cast<int>(raw)));
  const __m128i half = _mm_set1_epi32(0x00400000);
  const __m128i bits = _mm_max_epi32(_mm_slli_epi32(codes, 23), half);
  const __m128i nan = _mm_cmpeq_epi32(codes, _mm_set1_epi32(255));
  const __m128i all = _mm_or_si128(bits, _mm_and_si128(nan, half));
  const F32 scales = _mm256_castps128_ps256(_mm_castsi128_ps(all));
  out[0] = _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
  out[1] = _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3));
}

HR_INLINE U32 widen(const uint8_t *p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
}
HR_INLINE U32 widen_signed(const uint8_t *p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
}
HR_INLINE U32 widen_bytes(const uint64_t *words, int i) {
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(words[i / 8])));
}
HR_INLINE F32 to_f32(U32 v) { return _mm256_cvtepi32_ps(v); }

// --- 4-bit codes from 0 with a scale and a minimum -----------------------------------------------

// Four lanes of one number and four of the other in turns; the vector from lane i on.
HR_INLINE F32 four_each(float first, float second, int) {
  return _mm256_blend_ps(broadcast(first), broadcast(second), 0xF0);
}

// As in vec_avx512.h; the runs are the halves of each vector here.
template <bool by_run, int stride, class Visit>
HR_INLINE void visit_nibbles(const uint8_t *a, const uint8_t *b, const float *scales,
                             const float *minima, Visit &&visit) {
  const Table table = {sixteen_bytes(0x40404040'40403F00, 0x41414141'41414141),
                       sixteen_bytes(0xE0C0A080'40008000, 0x70605040'30201000)};
  const U32 bytes = _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(a))),
      _mm_loadu_si128(reinterpret_cast<const __m128i *>(b)), 1);
  F32 by[2], least[2];
  for (int i = 0; i < 2; ++i) {
    by[i] = broadcast(scales[i * stride]);
    least[i] = broadcast(minima[i * stride]);
  }
  if constexpr (by_run) {
    by[0] = by[1] = _mm256_blend_ps(by[0], by[1], 0xF0);
    least[0] = least[1] = _mm256_blend_ps(least[0], least[1], 0xF0);
  }
  for (int i = 0; i < 2; ++i) {
    const WordPairs words = look_up(i ? high_nibbles(bytes) : low_nibbles(bytes), table);
    for (int j = 0; j < 2; ++j) {
      visit(i * 4 + j * 2, fma(by[i], bf16_even(words.v[j]), least[i]));
      visit(i * 4 + j * 2 + 1, fma(by[i], bf16_odd(words.v[j]), least[i]));
    }
  }
}

}  // namespace headrace::HEADRACE_TIER
