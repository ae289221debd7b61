// The formats of the amx tier: 32 columns of a row as bfloat16, `valid` of them there.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "inline.h"
#include "matrix.h"

namespace headrace::amx {

constexpr int COLUMNS = 32;  // of weights and activations that a tile takes

HR_INLINE uint64_t first_bits(int count) { return (1ull << count) - 1; }

struct BFloat16 {
  struct Row {
    const uint8_t *codes;
  };
  static constexpr int block_bytes = 64;
  static HR_INLINE Row row(const Matrix &m, int64_t r) { return {m.weight + r * m.row_bytes}; }
  static HR_INLINE __m512i load(const Row &row, int64_t block, int valid) {
    const uint8_t *at = row.codes + block * block_bytes;
    if (valid == COLUMNS) return _mm512_loadu_si512(at);
    return _mm512_maskz_loadu_epi16(static_cast<__mmask32>(first_bits(valid)), at);
  }
};

// What sixteen codes mean under each scale.
struct E2m1Table {
  alignas(64) uint16_t of[256][16] = {};

  constexpr explicit E2m1Table(float (*scale)(int code)) {
    constexpr float codes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (int s = 0; s < 256; ++s)
      for (int c = 0; c < 16; ++c) {
        const double value = static_cast<double>(codes[c % 8]) * static_cast<double>(scale(s));
        const bool overflows = value > static_cast<double>(std::numeric_limits<float>::max());
        const float held =
            overflows ? std::numeric_limits<float>::infinity() : static_cast<float>(value);
        const uint32_t sign = c < 8 ? 0 : 0x8000;
        of[s][c] = static_cast<uint16_t>(std::bit_cast<uint32_t>(held) >> 16 ^ sign);
      }
  }
};

constexpr float power_of_two(int n) {
  float value = 1.0f;
  for (; n > 0; --n) value *= 2.0f;
  for (; n < 0; ++n) value *= 0.5f;
  return value;
}

constexpr float e4m3(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 127) == 127) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent
                              ? static_cast<float>(8 + fraction) * power_of_two(exponent - 10)
                              : static_cast<float>(fraction) * power_of_two(-9);
  return code & 128 ? -magnitude : magnitude;
}

constexpr float e8m0(int code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : power_of_two(code - 127);
}

constexpr E2m1Table nvfp4_table(e4m3), mxfp4_table(e8m0);

// Columns as they are: byte j has columns 2j and 2j + 1. `first` and `second` are the meanings of
// the codes of each sixteen columns.
HR_INLINE __m512i e2m1(__m128i bytes, const uint16_t *first, const uint16_t *second) {
  const __m512i order = _mm512_set_epi8(
      -1, 15, -1, 15, -1, 14, -1, 14, -1, 13, -1, 13, -1, 12, -1, 12, -1, 11, -1, 11, -1, 10, -1,
      10, -1, 9, -1, 9, -1, 8, -1, 8, -1, 7, -1, 7, -1, 6, -1, 6, -1, 5, -1, 5, -1, 4, -1, 4, -1,
      3, -1, 3, -1, 2, -1, 2, -1, 1, -1, 1, -1, 0, -1, 0);
  const __m512i twice = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), order);
  const __m512i nibbles = _mm512_srlv_epi16(twice, _mm512_set1_epi32(4 << 16));
  const __m512i second_half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
  // (nibbles & 15) | second_half
  const __m512i places =
      _mm512_ternarylogic_epi32(nibbles, _mm512_set1_epi16(15), second_half, 0xEA);
  const __m256i *low = reinterpret_cast<const __m256i *>(first);
  const __m256i *high = reinterpret_cast<const __m256i *>(second);
  const __m512i table = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256(low)),
                                           _mm256_load_si256(high), 1);
  return _mm512_permutexvar_epi16(places, table);
}

struct E2m1Row {
  const uint8_t *codes, *scales;
};

template <int group>
struct E2m1 {
  using Row = E2m1Row;
  static constexpr int block_bytes = COLUMNS / 2;
  static HR_INLINE Row row(const Matrix &m, int64_t r) {
    return {m.weight + r * m.row_bytes, m.scale + r * m.scale_row_bytes};
  }
  static HR_INLINE __m512i load(const Row &row, int64_t block, int valid) {
    const E2m1Table &table = group == NVFP4_GROUP ? nvfp4_table : mxfp4_table;
    const uint8_t *scales = row.scales + block * COLUMNS / group;
    const uint16_t *first = table.of[scales[0]];
    const uint8_t *at = row.codes + block * block_bytes;
    if (valid == COLUMNS)
      return e2m1(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)), first,
                  group == COLUMNS ? first : table.of[scales[1]]);
    // Code 0 under a scale of 0 stands for the columns that are not there.
    return e2m1(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at)), first, table.of[0]);
  }
};

}  // namespace headrace::amx
