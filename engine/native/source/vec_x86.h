// What both tiers of x86 do with eight lanes and fewer. Needs AVX and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "inline.h"

namespace headrace::HEADRACE_TIER {

HR_INLINE float reduce_eight(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// As max, where a number is none.
HR_INLINE float greatest_of_eight(__m256 v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

HR_INLINE float half(const uint8_t *p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return _cvtsh_ss(bits);
}

// The first four of `words` as float16, every other one times `odd`.
template <int odd>
HR_INLINE void store_halves(uint64_t words, float *out) {
  const __m128 v = _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<int64_t>(words)));
  _mm_store_ps(out, odd == 1 ? v : _mm_mul_ps(v, _mm_setr_ps(1.0f, odd, 1.0f, odd)));
}

}  // namespace headrace::HEADRACE_TIER
