// The avx512 tier, and for prompts tiles of bfloat16: products of more than FEW_TOKENS tokens.
//
// A number is the sum of bfloat16 parts: a bfloat16 activation is one, a float32 one three. Weights
// are one where they are exact in it, scale included, or else two, which hold them to 2^-17; such
// have tiles only where activations came as bfloat16. Sums are float32.
//
// The order of summation: a chunk's columns lie as in the avx512 tier and are added 32 at a time, in
// the order of the instruction; of these, the weights' first part before their second, and for each
// the activations' first part before their later ones. Numbers below 2^-126 count as zero, those
// that bfloat16 rounds to infinity as infinite; with several parts infinity may become NaN, never a
// number.
#define HEADRACE_TIER amx
#include "vec_avx512.h"

#include "e4m3_words.h"

#include "tier_table.h"

namespace headrace {

namespace amx {

constexpr int TILE_ROWS = TILE_TOKENS;     // rows of a tile, and float32 numbers of its rows
constexpr int TILE_COLUMNS = 32;  // bfloat16 numbers of its rows
constexpr int TILE_BYTES = 1024;
constexpr int LINE = 64;  // bytes of a tile's row
constexpr int AT_ONCE = 2 * TILE_ROWS;  // tokens and rows that meet at once

HR_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// --- the instructions ----------------------------------------------------------------------------

// What the processor is told of its eight tiles: all of them have sixteen rows of 64 bytes.
struct alignas(64) Shapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS,
                      TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS};
};
constexpr Shapes shapes;

// Compilers' own functions for these take macros for tiles and do not say that they read memory.
HR_INLINE void begin() { __asm__ volatile("ldtilecfg %0" ::"m"(shapes)); }
// Tiles in use would be saved whenever the thread leaves its core.
HR_INLINE void end() { __asm__ volatile("tilerelease"); }
template <int tile>
HR_INLINE void load(const uint8_t *from, int64_t distance = LINE) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(distance), "i"(tile)
                   : "memory");
}
template <int tile>
HR_INLINE void store(float *to) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(int64_t{64}), "i"(tile)
                   : "memory");
}
template <int sums, int tokens, int weights>
HR_INLINE void add_product() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(tokens), "i"(weights));
}

// --- numbers as bfloat16 -------------------------------------------------------------------------

HR_INLINE F32 widened(__m256i v) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

// What is left of a number; nothing of what is none.
HR_INLINE F32 rest(F32 v, F32 part) {
  constexpr int NAN_OR_INFINITE = 0x99;
  const __mmask16 none = _mm512_fpclass_ps_mask(part, NAN_OR_INFINITE);
  return _mm512_maskz_sub_ps(static_cast<__mmask16>(~none), v, part);
}

// A row of a tile, and the further parts of its numbers, so many bytes apart.
template <int parts, int distance>
HR_INLINE void narrow(F32 a, F32 b, uint8_t *row, __mmask32 which = ~__mmask32{0}) {
  const __m512i first = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
  _mm512_mask_storeu_epi16(row, which, first);
  if constexpr (parts > 1) {
    a = rest(a, widened(_mm512_castsi512_si256(first)));
    b = rest(b, widened(_mm512_extracti64x4_epi64(first, 1)));
    narrow<parts - 1, distance>(a, b, row + distance, which);
  }
}

// --- activations ---------------------------------------------------------------------------------

// Which column of a chunk lies at each place.
template <class F>
struct Columns {
  alignas(64) int32_t at[F::chunk] = {};
  constexpr Columns() {
    for (int i = 0; i < F::chunk; ++i) at[F::place(i)] = i;
  }
};

// Columns first .. first + count of a chunk, for each of its blocks one line a part.
template <class F, int parts>
HR_INLINE void split_chunk(const float *values, int first, int count, uint8_t *lines) {
  static constexpr Columns<F> columns;
  const __m512i from = _mm512_set1_epi32(first), all = _mm512_set1_epi32(count);
  const auto take = [&](int place, __mmask16 &which) {
    const __m512i at = _mm512_sub_epi32(_mm512_load_si512(columns.at + place), from);
    which = _mm512_cmplt_epu32_mask(at, all);
    return _mm512_mask_i32gather_ps(zero(), which, at, values, 4);
  };
  for (int place = 0; place < F::chunk; place += TILE_COLUMNS, lines += parts * LINE) {
    __mmask16 low, high;
    const F32 a = take(place, low), b = take(place + W, high);
    narrow<parts, LINE>(a, b, lines, low | static_cast<__mmask32>(high) << W);
  }
}

template <class F, int parts>
void split(const float *values, int64_t first, int64_t count, float *row, int64_t) {
  constexpr int64_t bytes = F::chunk / TILE_COLUMNS * parts * LINE;
  uint8_t *const lines = reinterpret_cast<uint8_t *>(row);
  for (int64_t i = first, end = first + count; i < end;) {
    const int within = static_cast<int>(i % F::chunk);
    const int many = static_cast<int>(least(F::chunk - within, end - i));
    split_chunk<F, parts>(values + (i - first), within, many, lines + i / F::chunk * bytes);
    i += many;
  }
}

// --- weights -------------------------------------------------------------------------------------

// Sixteen rows of sixteen pairs become sixteen pairs of sixteen rows.
HR_INLINE void turn(const uint8_t *from, uint8_t *to) {
  __m512i v[TILE_ROWS], a[TILE_ROWS];
  for (int i = 0; i < TILE_ROWS; ++i) v[i] = _mm512_load_si512(from + i * 64);
  for (int i = 0; i < TILE_ROWS; i += 2) {
    a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < TILE_ROWS; i += 4) {
    v[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i low = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    const __m512i high = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xDD);
    const __m512i low2 = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    const __m512i high2 = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xDD);
    _mm512_store_si512(to + i * 64, _mm512_shuffle_i32x4(low, low2, 0x88));
    _mm512_store_si512(to + (i + 4) * 64, _mm512_shuffle_i32x4(high, high2, 0x88));
    _mm512_store_si512(to + (i + 8) * 64, _mm512_shuffle_i32x4(low, low2, 0xDD));
    _mm512_store_si512(to + (i + 12) * 64, _mm512_shuffle_i32x4(high, high2, 0xDD));
  }
}

// Chunk c of a row, its scales applied.
template <class F, bool full>
HR_INLINE void decode_chunk(const typename F::Row &row, int64_t c, int valid, F32 *w) {
  constexpr int share = F::parts / F::shares;
  int closed = 0;
  F::template visit<full>(
      row, c, valid, [&](int p, F32 v) { w[p] = v; },
      [&](auto... scale) {
        if constexpr (sizeof...(scale) > 0)
          for (int p = closed; p < closed + share; ++p) w[p] = mul(w[p], scale...);
        closed += share;
      });
}

// Sixteen rows as turned tiles, `stride` bytes apart: block by block, part by part. Rows that are
// not there are the last one again; their sums are dropped.
template <class F, int parts>
void decode_tiles(const Matrix &m, int64_t first, int64_t count, int64_t stride, uint8_t *tiles) {
  constexpr int tiles_of_chunk = F::chunk / TILE_COLUMNS * parts;
  alignas(64) uint8_t rows[tiles_of_chunk * TILE_BYTES];
  typename F::Row row[TILE_ROWS];
  for (int r = 0; r < TILE_ROWS; ++r) row[r] = F::row(m, first + least(r, count - 1));
  for (int64_t c = 0; c * F::chunk < m.columns; ++c) {
    const int valid = static_cast<int>(least(F::chunk, m.columns - c * F::chunk));
    for (int r = 0; r < TILE_ROWS; ++r) {
      F32 w[F::parts];
      if (valid == F::chunk)
        decode_chunk<F, true>(row[r], c, valid, w);
      else
        decode_chunk<F, false>(row[r], c, valid, w);
      for (int p = 0; p < F::parts; p += 2)
        narrow<parts, TILE_BYTES>(w[p], w[p + 1], rows + p / 2 * parts * TILE_BYTES + r * LINE);
    }
    for (int i = 0; i < tiles_of_chunk; ++i, tiles += stride) turn(rows + i * TILE_BYTES, tiles);
  }
}

// --- products ------------------------------------------------------------------------------------

// I tiles of tokens, whose rows are `distance` bytes apart, times two of rows, which take turns in
// `weights`. The sums of tile i of tokens and j of rows are sums[2 * i + j].
template <int I, int weight_parts, int parts>
HR_INLINE void multiply(const uint8_t *tokens, int64_t distance, const uint8_t *weights,
                        int64_t blocks, float (*sums)[TILE_ROWS * TILE_ROWS]) {
  __asm__ volatile("tilezero %tmm0; tilezero %tmm1; tilezero %tmm2; tilezero %tmm3");
  for (int64_t b = 0; b < blocks; ++b, tokens += parts * LINE) {
    for (int w = 0; w < weight_parts; ++w, weights += 2 * TILE_BYTES) {
      load<6>(weights);
      load<7>(weights + TILE_BYTES);
      // Two later parts make nothing that float32 would hold.
      for (int p = 0; p < (parts == 1 ? 1 : parts - w); ++p) {
        load<4>(tokens + p * LINE, distance);
        add_product<0, 4, 6>();
        add_product<1, 4, 7>();
        if constexpr (I == 2) {
          load<5>(tokens + TILE_ROWS * distance + p * LINE, distance);
          add_product<2, 5, 6>();
          add_product<3, 5, 7>();
        }
      }
    }
  }
  store<0>(sums[0]);
  store<1>(sums[1]);
  if constexpr (I == 2) {
    store<2>(sums[2]);
    store<3>(sums[3]);
  }
}

template <class F, int weight_parts, int parts>
void product(const Matrix &m, int64_t first, int64_t count, const float *const *x, int64_t tokens,
             float *const *out, void *scratch) {
  alignas(64) float sums[4][TILE_ROWS * TILE_ROWS];
  const int64_t blocks = (m.columns + F::chunk - 1) / F::chunk * (F::chunk / TILE_COLUMNS);
  const int64_t distance = tokens > 1 ? (x[1] - x[0]) * 4 : 0;
  uint8_t *weights = static_cast<uint8_t *>(scratch);
  F32 global = broadcast(1.0f);
  if constexpr (F::global) global = broadcast(F::row(m, first).global);
  begin();
  for (int64_t row = 0; row < count; row += AT_ONCE) {
    const int64_t left = count - row, second = left > TILE_ROWS ? TILE_ROWS : 0;
    decode_tiles<F, weight_parts>(m, first + row, left, 2 * TILE_BYTES, weights);
    decode_tiles<F, weight_parts>(m, first + row + second, left - second, 2 * TILE_BYTES, weights + TILE_BYTES);
    for (int64_t t = 0; t < tokens; t += AT_ONCE) {
      const uint8_t *at = reinterpret_cast<const uint8_t *>(x[t]);
      if (tokens - t > TILE_ROWS)
        multiply<2, weight_parts, parts>(at, distance, weights, blocks, sums);
      else
        multiply<1, weight_parts, parts>(at, distance, weights, blocks, sums);
      for (int64_t i = 0; i < least(AT_ONCE, tokens - t); ++i)
        for (int64_t j = 0; j < 2 && left > j * TILE_ROWS; ++j)
          _mm512_mask_storeu_ps(
              out[t + i] + row + j * TILE_ROWS,
              static_cast<__mmask16>(first_bits(static_cast<int>(least(TILE_ROWS, left - j * TILE_ROWS)))),
              mul(load_f32(sums[i / TILE_ROWS * 2 + j] + i % TILE_ROWS * TILE_ROWS), global));
    }
  }
  end();
}

template <class F, int weight_parts, int parts>
Kernel tiled() {
  Kernel k = kernel<F>();
  k.product = product<F, weight_parts, parts>;
  k.split = split<F, parts>;
  k.tiles = true;
  k.column_bytes = parts * 2;
  k.scratch_bytes_per_chunk = F::chunk / TILE_COLUMNS * weight_parts * 2 * TILE_BYTES;
  return k;
}

template <class F, int weight_parts>
void add(Tier &tier, Format format) {
  const auto kernel = [&](Numbers numbers) -> Kernel & {
    return tier.prompts[static_cast<int>(numbers)][static_cast<int>(format)];
  };
  kernel(Numbers::bfloat16) = tiled<F, weight_parts, 1>();
  kernel(Numbers::between) = tiled<F, weight_parts, 3>();
  // Three parts are all of a float32 number; weights in two would be less than its precision.
  if constexpr (weight_parts == 1) kernel(Numbers::float32) = kernel(Numbers::between);
}

}  // namespace amx

const Tier *amx_tier() {
  static const Tier tier = [] {
    Tier t = *avx512_tier();
    amx::add<amx::BFloat16, 1>(t, Format::bfloat16);
    amx::add<amx::Nvfp4, 1>(t, Format::nvfp4);
    amx::add<amx::Mxfp4, 1>(t, Format::mxfp4);
    amx::add<amx::Float16, 2>(t, Format::float16);
    amx::add<amx::Q8_0, 2>(t, Format::q8_0);
    amx::add<amx::Q4_0, 2>(t, Format::q4_0);
    amx::add<amx::Q4_1, 2>(t, Format::q4_1);
    amx::add<amx::Q4_K, 2>(t, Format::q4_k);
    amx::add<amx::Q6_K, 2>(t, Format::q6_k);
    return t;
  }();
  return &tier;
}

}  // namespace headrace
