// Products of e2m1 weights with activations that came as bfloat16, for a single token in integers: a
// byte multiplication takes 32 weights where one of floats takes eight. Included by the avx2 tier.
//
// Activations are rounded when they are arranged: eight neighbours, which one lane takes, become
// integers of up to 2^17 times a power of two. What is 2^9 times smaller than the largest of them,
// or less, thus stays as it is. A weight is an integer of up to 12, halved, so the eight products of
// a lane add up to less than 2^24 and a float32 sum of them is exact in any order. So both ways, of
// integers and of the rounded floats, give the same bits.
//
// An integer is written as three digits, which are signed bytes. Weights become unsigned bytes by
// adding 12, and what that adds to a lane's sum is subtracted: it depends on activations alone.
//
// Numbers that are none or whose size is unusual stay floats. A row that has one goes that way.
#pragma once

namespace headrace::HEADRACE_TIER {

constexpr int DIGITS = 3, DIGIT_BITS = 7;
constexpr int LANE_COLUMNS = 8, GROUP_COLUMNS = W * LANE_COLUMNS;

// Of 64 columns. Byte b of a digit belongs to byte b of the codes.
struct alignas(64) Group {
  int8_t digits[DIGITS][2][4 * W];  // the lowest first; for low nibbles, for high ones
  int32_t correction[W];            // 12 times a lane's sum
  uint32_t power[W];                // added to a scale's bits multiplies it by the lane's power
};
constexpr uint32_t UNUSUAL = 1;  // as a power

HR_INLINE U32 load(const void *p) { return _mm256_load_si256(static_cast<const __m256i *>(p)); }

// Formats as they are, with their scales' bits: `valid` scales of a group, lane by lane.
struct Nvfp4Digits : Nvfp4 {
  // e4m3 in the highest bits of a fraction is 2^-120 of its value. Nvfp4's is 2^-8 of it.
  static constexpr int bias = 120 - 8;
  // Codes 8 to 126, eight at once: what is subnormal or NaN, or negative, is not usual.
  static HR_INLINE bool usual(const uint8_t *p) {
    uint64_t codes;
    std::memcpy(&codes, p, 8);
    const uint64_t all = codes | (codes - 0x0808080808080808) | (codes + 0x0101010101010101);
    return (all & 0x8080808080808080) == 0;
  }
  static HR_INLINE U32 scale_bits(const uint8_t *p, int group) {
    uint32_t codes;
    std::memcpy(&codes, p + group * 4, 4);
    const U32 places = _mm256_setr_epi32(0x00FFFFFF, 0x00FFFFFF, 0x01FFFFFF, 0x01FFFFFF, 0x02FFFFFF,
                                         0x02FFFFFF, 0x03FFFFFF, 0x03FFFFFF);
    const U32 four = _mm256_set1_epi32(static_cast<int>(codes));
    return _mm256_srli_epi32(_mm256_shuffle_epi8(four, places), 4);
  }
  template <bool full>
  static HR_INLINE void scales(const uint8_t *p, int valid, F32 *out) {
    nvfp4_scales_over_256<full>(p, valid / NVFP4_GROUP, out);
  }
};

struct Mxfp4Digits : Mxfp4 {
  static constexpr int bias = 0;
  // Codes 48 to 174: no usual power leaves the range of float32's exponent.
  static HR_INLINE bool usual(const uint8_t *p) {
    uint32_t codes;
    std::memcpy(&codes, p, 4);
    codes -= 0x30303030;
    return ((codes | (codes + 0x01010101)) & 0x80808080) == 0;
  }
  static HR_INLINE U32 scale_bits(const uint8_t *p, int group) {
    uint32_t codes;
    std::memcpy(&codes, p, 4);
    const int a = group ? 0x02FFFFFF : 0x00FFFFFF, b = group ? 0x03FFFFFF : 0x01FFFFFF;
    const U32 places = _mm256_setr_epi32(a, a, a, a, b, b, b, b);
    const U32 four = _mm256_set1_epi32(static_cast<int>(codes));
    return _mm256_srli_epi32(_mm256_shuffle_epi8(four, places), 1);
  }
  template <bool full>
  static HR_INLINE void scales(const uint8_t *p, int valid, F32 *out) {
    mxfp4_scales<full>(p, valid / MXFP4_GROUP, out);
  }
};

// --- activations ----------------------------------------------------------------------------------

// A lane's largest number is from 2^LEAST to below 2^GREATEST, or all are zero.
constexpr int LEAST = -30, GREATEST = 64, INTEGER_BITS = 17;

HR_INLINE int greatest_of(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(2, 3, 0, 1))));
}
HR_INLINE int sum_of(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1))));
}
HR_INLINE float power_of_two(int n) {
  const int32_t bits = (n + 127) << 23;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// The digits of eight columns: those of even columns in one word, those of odd ones in the next.
HR_INLINE void write_digits(__m256i integers, Group &group, int lane) {
  const __m256i half = _mm256_set1_epi32(1 << (DIGIT_BITS - 1));
  __m256i digits[DIGITS];
  for (int i = 0; i + 1 < DIGITS; ++i) {
    const __m256i rest = _mm256_srai_epi32(_mm256_add_epi32(integers, half), DIGIT_BITS);
    digits[i] = _mm256_sub_epi32(integers, _mm256_slli_epi32(rest, DIGIT_BITS));
    integers = rest;
  }
  digits[DIGITS - 1] = integers;
  const __m256i zeros = _mm256_setzero_si256();
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(digits[0], digits[1]),
                                           _mm256_packs_epi32(digits[2], zeros));
  const __m256i turned = _mm256_shuffle_epi8(
      bytes, sixteen_bytes(0x07050604'03010200, 0x0F0D0E0C'0B090A08));
  const __m128i low = _mm256_castsi256_si128(turned), high = _mm256_extracti128_si256(turned, 1);
  alignas(16) uint8_t words[32];
  _mm_store_si128(reinterpret_cast<__m128i *>(words), _mm_unpacklo_epi16(low, high));
  _mm_store_si128(reinterpret_cast<__m128i *>(words + 16), _mm_unpackhi_epi16(low, high));
  for (int i = 0; i < DIGITS; ++i) {
    std::memcpy(group.digits[i][0] + lane * 4, words + i * 8, 4);
    std::memcpy(group.digits[i][1] + lane * 4, words + i * 8 + 4, 4);
  }
}

template <class F>
HR_INLINE void arrange_lane(F32 v, Group &group, int lane, float *rounded) {
  const __m256i bits = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7FFFFFFF));
  const int greatest = greatest_of(bits);
  int exponent = (greatest >> 23) - 127;
  if (greatest != 0 && (exponent < LEAST || exponent >= GREATEST)) {
    group.power[lane] = UNUSUAL;
    return store_f32(rounded, v);
  }
  if (greatest == 0) exponent = 0;
  const int power = exponent - (INTEGER_BITS - 1);
  const __m256i integers = _mm256_cvtps_epi32(mul(v, broadcast(power_of_two(-power))));
  store_f32(rounded, mul(_mm256_cvtepi32_ps(integers), broadcast(power_of_two(power))));
  // Weights are twice their value.
  group.power[lane] = static_cast<uint32_t>(power - 1 + F::bias) << 23;
  group.correction[lane] = 12 * sum_of(integers);
  write_digits(integers, group, lane);
}

template <class F>
void arrange_digits(const float *values, int64_t first, int64_t count, float *row,
                    int64_t padded) {
  Group *groups = reinterpret_cast<Group *>(row + padded);
  for (int64_t i = first; i < first + count; i += LANE_COLUMNS) {
    Group &group = groups[i / GROUP_COLUMNS];
    const int64_t column = i % GROUP_COLUMNS;
    const int lane = static_cast<int>(column) / LANE_COLUMNS;
    alignas(32) float rounded[LANE_COLUMNS];
    arrange_lane<F>(load_f32(values + (i - first)), group, lane, rounded);
    float *to = row + (i - column) + lane;
    constexpr int places[] = {F::place(0), F::place(1), F::place(2), F::place(3),
                              F::place(4), F::place(5), F::place(6), F::place(7)};
    for (int j = 0; j < LANE_COLUMNS; ++j) to[places[j]] = rounded[j];
  }
}

HR_INLINE bool usual(const Group *groups, int64_t count) {
  U32 powers = zero_u32();
  for (int64_t i = 0; i < count; ++i)
    powers = _mm256_or_si256(powers, load(groups[i].power));
  return _mm256_testz_si256(powers, _mm256_set1_epi32(UNUSUAL));
}

// --- products -------------------------------------------------------------------------------------

struct Nibbles {
  U32 low, high;
};

// Twice the weights, and 12.
HR_INLINE Nibbles e2m1_bytes(U32 codes) {
  const U32 table = sixteen_bytes(0x18141210'0F0E0D0C, 0x00040608'090A0B0C);
  return {_mm256_shuffle_epi8(table, low_nibbles(codes)),
          _mm256_shuffle_epi8(table, high_nibbles(codes))};
}

// What a digit counts, in words. In memory, for compilers would make them anew in every turn.
struct Factors {
  alignas(32) int16_t of[DIGITS][2 * W];

  HR_INLINE Factors() {
    for (int i = 0; i < DIGITS; ++i)
      for (int j = 0; j < 2 * W; ++j) of[i][j] = static_cast<int16_t>(1 << i * DIGIT_BITS);
    HR_IN_MEMORY(of);
  }
};

// Sums by lane.
HR_INLINE U32 multiply(const Nibbles &weights, const Group &x, const Factors &factors) {
  U32 sums = zero_u32();
  for (int i = 0; i < DIGITS; ++i) {
    const U32 words = _mm256_add_epi16(_mm256_maddubs_epi16(weights.low, load(x.digits[i][0])),
                                       _mm256_maddubs_epi16(weights.high, load(x.digits[i][1])));
    const U32 part = _mm256_madd_epi16(words, load(factors.of[i]));
    sums = i ? _mm256_add_epi32(sums, part) : _mm256_sub_epi32(part, load(x.correction));
  }
  return sums;
}

template <class F, bool full>
HR_INLINE F32 digit_chunk(const typename F::Row &row, int64_t c, int valid, const Group *x,
                          const Factors &factors, F32 sum) {
  const uint8_t *codes = row.codes + c * F::code_bytes, *scales = row.scales + c * F::scale_bytes;
  const auto share = [&](int g) {
    const U32 bytes = load_u32<full>(codes + g * 32, valid / 2 - g * 32);
    return _mm256_cvtepi32_ps(multiply(e2m1_bytes(bytes), x[g], factors));
  };
  if (full && F::usual(scales)) {
    for (int g = 0; g < F::shares; ++g) {
      const U32 by = add_u32(F::scale_bits(scales, g), load(x[g].power));
      sum = fma(share(g), _mm256_castsi256_ps(by), sum);
    }
    return sum;
  }
  F32 by[F::shares];
  F::template scales<full>(scales, valid, by);
  const U32 one = _mm256_set1_epi32((127 - F::bias) << 23);
  for (int g = 0; g < F::shares; ++g) {
    const F32 power = _mm256_castsi256_ps(add_u32(load(x[g].power), one));
    sum = fma(mul(share(g), power), by[g], sum);
  }
  return sum;
}

// More tokens at once gain nothing: then decoding, which is what integers save, is shared.
template <class F>
void digit_product(const Matrix &m, int64_t first, int64_t count, const float *const *x,
                   int64_t tokens, float *const *out, void *scratch) {
  const int64_t whole = m.columns / F::chunk;
  const int64_t padded = (m.columns + F::chunk - 1) / F::chunk * F::chunk;
  const int rest = static_cast<int>(m.columns % F::chunk);
  const Group *groups = reinterpret_cast<const Group *>(x[0] + padded);
  if (tokens != 1 || !usual(groups, padded / GROUP_COLUMNS))
    return product<F>(m, first, count, x, tokens, out, scratch);
  const Factors factors;
  for (int64_t r = 0; r < count; ++r) {
    const typename F::Row row = F::row(m, first + r);
    F32 sum = zero();
    for (int64_t c = 0; c < whole; ++c) {
      fetch_ahead<F>(row, c);
      sum = digit_chunk<F, true>(row, c, F::chunk, groups + c * F::shares, factors, sum);
    }
    if (rest)
      sum = digit_chunk<F, false>(row, whole, rest, groups + whole * F::shares, factors, sum);
    out[0][r] = finish<F>(row, sum);
  }
}

template <class F>
Kernel digit_kernel() {
  Kernel k = kernel<F>();
  k.product = digit_product<F>;
  k.split = arrange_digits<F>;
  k.alone_bytes = sizeof(Group) / GROUP_COLUMNS;
  return k;
}

}  // namespace headrace::HEADRACE_TIER
