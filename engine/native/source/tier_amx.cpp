// The avx512 tier with tiles of bfloat16 for the formats whose weights are exact in it, scales
// included: bfloat16 itself, NVFP4 (a code has two significant bits, its scale four) and MXFP4.
//
// A float32 activation is split into three numbers of eight significant bits, whose sum it is. So
// each product is exact, as with float32's own instructions; numbers below 2^-126 count as zero.
//
// The order of summation: 32 columns at a time, in the order of the instruction, for each of the
// three parts a sum of its own; at the end low + middle + high. Which of the two factors is the
// weights' tile changes no bit, so a few tokens meet weights as they lie in a row, and many meet
// them turned, where the turning pays off and tokens lie as they come.
#include <immintrin.h>

#include <cstring>

#include "amx_formats.h"
#include "inline.h"
#include "tier.h"

namespace headrace {

namespace amx {

constexpr int SIDE = 16;     // rows of a tile, and float32 numbers of its rows
constexpr int TILE = 1024;   // bytes
constexpr int PARTS = 3;
constexpr int ACTIVATIONS = 6, WEIGHTS = 7;  // tiles; the sums are 0 to 5

HR_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// --- tiles ---------------------------------------------------------------------------------------

// What the processor is told of its tiles.
struct alignas(64) Shapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int height, int width) {
    rows[tile] = static_cast<uint8_t>(height);
    bytes[tile] = static_cast<uint16_t>(width);
  }
};

// Compilers' own functions for these take macros for tiles and do not say that they read memory.
template <int tile>
HR_INLINE void load(const void *from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
HR_INLINE void store(void *to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
}
template <int sums, int first, int second>
HR_INLINE void add_product() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(first), "i"(second));
}
HR_INLINE void zero_sums() {
  __asm__ volatile("tilezero %tmm0; tilezero %tmm1; tilezero %tmm2");
  __asm__ volatile("tilezero %tmm3; tilezero %tmm4; tilezero %tmm5");
}
// Changing them takes as long as a small product, so they are left as they are: Linux resets the
// registers itself when a core sleeps.
HR_INLINE void use(const Shapes &shapes) {
  Shapes now;
  __asm__ volatile("sttilecfg %0" : "=m"(now));
  if (_mm512_cmpneq_epi64_mask(_mm512_load_si512(&now), _mm512_load_si512(&shapes)))
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
}

template <int n>
struct Number {};

template <class F>
struct Rows {
  typename F::Row of[SIDE];
  int count;

  Rows(const Matrix &m, int64_t first, int64_t there)
      : count(static_cast<int>(least(SIDE, there))) {
    // Rows that are not there are the last one again; their sums are dropped.
    for (int r = 0; r < SIDE; ++r) of[r] = F::row(m, first + least(r, count - 1));
  }
};

HR_INLINE __m512 total(__m512i high, __m512i middle, __m512i low) {
  return _mm512_add_ps(_mm512_add_ps(_mm512_castsi512_ps(low), _mm512_castsi512_ps(middle)),
                       _mm512_castsi512_ps(high));
}

// The first ones of a vector, so many as there are left.
HR_INLINE __mmask16 lanes(int64_t left) {
  return static_cast<__mmask16>(first_bits(static_cast<int>(least(SIDE, left))));
}

HR_INLINE int valid_columns(const Matrix &m, int64_t block) {
  return static_cast<int>(least(COLUMNS, m.columns - block * COLUMNS));
}

// --- few tokens: weights as they lie are the first factor ----------------------------------------

constexpr int FEW_TOKENS = 2;
constexpr int AT_ONCE = 2;  // blocks that are decoded before they are multiplied

// Three vectors become one in which a lane of each is beside the same of the others, and back: two
// permutations for a vector, where the second takes from the third source.
struct Braid {
  alignas(64) int32_t in[PARTS][2][SIDE] = {}, out[PARTS][2][SIDE] = {};

  constexpr Braid() {
    for (int v = 0; v < PARTS; ++v)
      for (int i = 0; i < SIDE; ++i) {
        const int lane = (SIDE * v + i) / PARTS, from = (SIDE * v + i) % PARTS;
        in[v][0][i] = from == 1 ? SIDE + lane : lane;
        in[v][1][i] = from == 2 ? SIDE + lane : i;
        const int place = PARTS * i + v;
        out[v][0][i] = place < 2 * SIDE ? place : 0;
        out[v][1][i] = place < 2 * SIDE ? i : place - SIDE;
      }
  }
};
constexpr Braid braid;

HR_INLINE __m512i pick(const int32_t (*places)[SIDE], __m512i a, __m512i b, __m512i c) {
  a = _mm512_permutex2var_epi32(a, _mm512_load_si512(places[0]), b);
  return _mm512_permutex2var_epi32(a, _mm512_load_si512(places[1]), c);
}

// A token's pairs of columns, each with its three parts side by side.
void interleave(const float *x, int64_t blocks, uint32_t *out) {
  for (int64_t b = 0; b < blocks; ++b, x += PARTS * SIDE, out += PARTS * SIDE) {
    const __m512i high = _mm512_loadu_si512(x), middle = _mm512_loadu_si512(x + SIDE);
    const __m512i low = _mm512_loadu_si512(x + 2 * SIDE);
    for (int v = 0; v < PARTS; ++v)
      _mm512_storeu_si512(out + v * SIDE, pick(braid.in[v], high, middle, low));
  }
}

template <class F>
HR_INLINE void decode_blocks(const Matrix &m, const Rows<F> &rows, int64_t first, int64_t count,
                             uint8_t *tiles) {
  const bool full = count == AT_ONCE && (first + AT_ONCE) * COLUMNS <= m.columns;
  for (int r = 0; r < rows.count; ++r) {
    const typename F::Row &row = rows.of[r];
    // Into the second cache: these rows may lie in few of the first one's sets.
    _mm_prefetch(reinterpret_cast<const char *>(row.codes + 2 * SIDE * m.row_bytes +
                                                first * F::block_bytes),
                 _MM_HINT_T1);
    uint8_t *at = tiles + r * 64;
    if (full)
      for (int b = 0; b < AT_ONCE; ++b)
        _mm512_store_si512(at + b * TILE, F::load(row, first + b, COLUMNS));
    else
      for (int64_t b = 0; b < count; ++b)
        _mm512_store_si512(at + b * TILE, F::load(row, first + b, valid_columns(m, first + b)));
  }
}

// Rows j of J times token t go to tile j * T + t.
template <int J, int T>
HR_INLINE void multiply_blocks(const uint8_t *tiles, int64_t count, const uint32_t *x,
                               int64_t token) {
  constexpr int64_t row = PARTS * 4, other = AT_ONCE * TILE;
  for (int64_t b = 0; b < count; ++b, x += SIDE * PARTS, tiles += TILE) {
    const auto meet = [&]<int t>(Number<t>) {
      load<ACTIVATIONS>(x + t * token, row);
      if (J > 1 || t == 0) load<WEIGHTS>(tiles, 64);
      add_product<t, WEIGHTS, ACTIVATIONS>();
      if constexpr (J > 1) {
        load<WEIGHTS>(tiles + other, 64);
        add_product<T + t, WEIGHTS, ACTIVATIONS>();
      }
    };
    meet(Number<0>());
    if constexpr (T > 1) meet(Number<1>());
  }
}

template <class F, int J, int T>
void few_tokens(const Matrix &m, int64_t first, int64_t row, int64_t count, const uint32_t *x,
                float *const *out) {
  alignas(64) uint8_t tiles[2][J][AT_ONCE * TILE];
  alignas(64) float sums[4][SIDE * PARTS];
  const int64_t blocks = (m.columns + COLUMNS - 1) / COLUMNS, token = blocks * SIDE * PARTS;
  constexpr int64_t other = (J - 1) * SIDE;
  const Rows<F> one(m, first + row, count), two(m, first + row + other, count - other);
  const auto size = [&](int64_t b) { return least(AT_ONCE, blocks - b); };
  const auto decode = [&](int64_t b, uint8_t (*to)[AT_ONCE * TILE]) {
    decode_blocks<F>(m, one, b, size(b), to[0]);
    if constexpr (J > 1) decode_blocks<F>(m, two, b, size(b), to[1]);
  };
  zero_sums();
  // A tile is loaded from memory, so the next blocks are decoded before these are needed.
  decode(0, tiles[0]);
  for (int64_t b = 0, turn = 0; b < blocks; b += AT_ONCE, turn ^= 1) {
    if (b + AT_ONCE < blocks) decode(b + AT_ONCE, tiles[turn ^ 1]);
    multiply_blocks<J, T>(tiles[turn][0], size(b), x + b * SIDE * PARTS, token);
  }
  store<0>(sums[0], PARTS * 4);
  store<1>(sums[1], PARTS * 4);
  store<2>(sums[2], PARTS * 4);
  store<3>(sums[3], PARTS * 4);
  const __m512 global = _mm512_set1_ps(m.global);
  for (int j = 0; j < J; ++j) {
    const __mmask16 there = lanes(count - j * SIDE);
    for (int t = 0; t < T; ++t) {
      const float *at = sums[j * T + t];
      const __m512i a = _mm512_load_si512(at), b = _mm512_load_si512(at + SIDE);
      const __m512i c = _mm512_load_si512(at + 2 * SIDE);
      _mm512_mask_storeu_ps(
          out[t] + row + j * SIDE, there,
          _mm512_mul_ps(total(pick(braid.out[0], a, b, c), pick(braid.out[1], a, b, c),
                              pick(braid.out[2], a, b, c)),
                        global));
    }
  }
}

template <class F, int T>
void few_tokens(const Matrix &m, int64_t first, int64_t count, const uint32_t *x,
                float *const *out) {
  int64_t row = 0;
  for (; row + SIDE < count; row += 2 * SIDE)
    few_tokens<F, 2, T>(m, first, row, count - row, x, out);
  if (row < count) few_tokens<F, 1, T>(m, first, row, count - row, x, out);
}

template <class F>
void few(const Matrix &m, int64_t first, int64_t count, const float *const *x, int64_t tokens,
         float *const *out, uint32_t *scratch) {
  const int64_t blocks = (m.columns + COLUMNS - 1) / COLUMNS;
  for (int64_t t = 0; t < tokens; ++t)
    interleave(x[t], blocks, scratch + t * blocks * SIDE * PARTS);
  Shapes shapes;
  for (int t = 0; t < 6; ++t) shapes.set(t, SIDE, PARTS * 4);
  shapes.set(WEIGHTS, SIDE, 64);
  shapes.set(ACTIVATIONS, SIDE, PARTS * 4);
  use(shapes);
  if (tokens == 1)
    few_tokens<F, 1>(m, first, count, scratch, out);
  else
    few_tokens<F, 2>(m, first, count, scratch, out);
}

// --- many tokens: turned weights are the second factor -------------------------------------------

// Sixteen rows of sixteen pairs become sixteen pairs of sixteen rows.
HR_INLINE void turn(__m512i *v) {
  __m512i a[SIDE];
  for (int i = 0; i < SIDE; i += 2) {
    a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < SIDE; i += 4) {
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
    a[i] = _mm512_shuffle_i32x4(low, low2, 0x88);
    a[i + 8] = _mm512_shuffle_i32x4(low, low2, 0xDD);
    a[i + 4] = _mm512_shuffle_i32x4(high, high2, 0x88);
    a[i + 12] = _mm512_shuffle_i32x4(high, high2, 0xDD);
  }
  for (int i = 0; i < SIDE; ++i) v[i] = a[i];
}

template <class F>
void decode_turned(const Matrix &m, const Rows<F> &rows, int64_t blocks, int64_t stride,
                   uint8_t *tiles) {
  for (int64_t b = 0; b < blocks; ++b) {
    __m512i v[SIDE];
    const int valid = valid_columns(m, b);
    for (int r = 0; r < SIDE; ++r) v[r] = F::load(rows.of[r], b, valid);
    turn(v);
    for (int r = 0; r < SIDE; ++r) _mm512_store_si512(tiles + b * stride + r * 64, v[r]);
  }
}

// Activations of up to sixteen tokens: part p of block b at `at` + p * part + b * block.
struct Activations {
  const uint8_t *at;
  int64_t stride, part, block;
};

template <int J>
HR_INLINE void multiply_tokens(const Activations &x, const uint8_t *weights, int64_t blocks,
                               float *sums) {
  zero_sums();
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t *at = x.at + b * x.block, *weight = weights + b * J * TILE;
    load<ACTIVATIONS>(at, x.stride);
    load<WEIGHTS>(weight, 64);
    add_product<0, ACTIVATIONS, WEIGHTS>();
    if constexpr (J == 2) {
      load<WEIGHTS>(weight + TILE, 64);
      add_product<3, ACTIVATIONS, WEIGHTS>();
    }
    load<ACTIVATIONS>(at + x.part, x.stride);
    if constexpr (J == 2) {
      add_product<4, ACTIVATIONS, WEIGHTS>();
      load<WEIGHTS>(weight, 64);
    }
    add_product<1, ACTIVATIONS, WEIGHTS>();
    load<ACTIVATIONS>(at + 2 * x.part, x.stride);
    add_product<2, ACTIVATIONS, WEIGHTS>();
    if constexpr (J == 2) {
      load<WEIGHTS>(weight + TILE, 64);
      add_product<5, ACTIVATIONS, WEIGHTS>();
    }
  }
  store<0>(sums, 64);
  store<1>(sums + 256, 64);
  store<2>(sums + 512, 64);
  if constexpr (J == 2) {
    store<3>(sums + 768, 64);
    store<4>(sums + 1024, 64);
    store<5>(sums + 1280, 64);
  }
}

// Where a tile can load them: as they lie, if they are as far from one another, or else copied.
Activations activations(const float *const *x, int tokens, int64_t blocks, uint8_t *copy) {
  const auto row = [&](int t) { return reinterpret_cast<const uint8_t *>(x[t]); };
  const int64_t stride = tokens > 1 ? row(1) - row(0) : 64;
  bool even = true;
  for (int t = 1; t < tokens; ++t) even = even && row(t) - row(t - 1) == stride;
  if (even) return {row(0), stride, 64, 64 * PARTS};
  for (int t = 0; t < tokens; ++t)
    for (int64_t b = 0; b < blocks * PARTS; ++b)
      _mm512_store_si512(copy + b * TILE + t * 64, _mm512_loadu_si512(row(t) + b * 64));
  return {copy, 64, TILE, TILE * PARTS};
}

void configure(int tokens) {
  Shapes shapes;
  for (int i = 0; i < 6; ++i) shapes.set(i, tokens, 64);
  shapes.set(ACTIVATIONS, tokens, 64);
  shapes.set(WEIGHTS, SIDE, 64);
  use(shapes);
}

template <class F, int J>
void many_tokens(const Matrix &m, int64_t first, int64_t row, int64_t count, const float *const *x,
                 int64_t tokens, float *const *out, uint8_t *weights) {
  alignas(64) float sums[2 * PARTS * SIDE * SIDE];
  const int64_t blocks = (m.columns + COLUMNS - 1) / COLUMNS;
  for (int j = 0; j < J; ++j)
    decode_turned<F>(m, Rows<F>(m, first + row + j * SIDE, count - j * SIDE), blocks, J * TILE,
                     weights + j * TILE);
  uint8_t *copy = weights + blocks * 2 * TILE;
  const __m512 global = _mm512_set1_ps(m.global);
  for (int64_t t = 0; t < tokens; t += SIDE) {
    const int here = static_cast<int>(least(SIDE, tokens - t));
    if (t == 0 || here < SIDE) configure(here);
    multiply_tokens<J>(activations(x + t, here, blocks, copy), weights, blocks, sums);
    for (int j = 0; j < J; ++j) {
      const __mmask16 there = lanes(count - j * SIDE);
      for (int i = 0; i < here; ++i) {
        const float *at = sums + (j * PARTS * SIDE + i) * SIDE;
        _mm512_mask_storeu_ps(out[t + i] + row + j * SIDE, there,
                              _mm512_mul_ps(total(_mm512_load_si512(at),
                                                  _mm512_load_si512(at + SIDE * SIDE),
                                                  _mm512_load_si512(at + 2 * SIDE * SIDE)),
                                            global));
      }
    }
  }
}

template <class F>
void product(const Matrix &m, int64_t first, int64_t count, const float *const *x, int64_t tokens,
             float *const *out, void *scratch) {
  if (tokens <= FEW_TOKENS) {
    few<F>(m, first, count, x, tokens, out, static_cast<uint32_t *>(scratch));
  } else {
    uint8_t *weights = static_cast<uint8_t *>(scratch);
    int64_t row = 0;
    for (; row + SIDE < count; row += 2 * SIDE)
      many_tokens<F, 2>(m, first, row, count - row, x, tokens, out, weights);
    if (row < count) many_tokens<F, 1>(m, first, row, count - row, x, tokens, out, weights);
  }
}

// Eight significant bits at a time. What is no number is high only. A block's high parts lie before
// its middle ones.
void split(const float *x, int64_t first, int64_t count, float *row, int64_t) {
  uint16_t *parts = reinterpret_cast<uint16_t *>(row);
  const __m512i upper = _mm512_set1_epi32(-65536);
  for (int64_t i = 0, step; i < count; i += step) {
    const int64_t at = first + i;
    step = least(SIDE - at % SIDE, count - i);
    const __mmask16 there = lanes(step);
    const __m512 v = _mm512_maskz_loadu_ps(there, x + i);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __mmask16 finite = static_cast<__mmask16>(~_mm512_fpclass_ps_mask(v, 0x99));
    __m512i a = _mm512_and_si512(_mm512_castps_si512(v), upper);
    a = _mm512_mask_or_epi32(a, nan, a, _mm512_set1_epi32(0x00400000));
    const __m512 rest = _mm512_maskz_sub_ps(finite, v, _mm512_castsi512_ps(a));
    const __m512i b = _mm512_and_si512(_mm512_castps_si512(rest), upper);
    const __m512i c = _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(b)));
    uint16_t *to = parts + at / COLUMNS * COLUMNS * PARTS + at % COLUMNS;
    _mm512_mask_cvtepi32_storeu_epi16(to, there, _mm512_srli_epi32(a, 16));
    _mm512_mask_cvtepi32_storeu_epi16(to + COLUMNS, there, _mm512_srli_epi32(b, 16));
    _mm512_mask_cvtepi32_storeu_epi16(to + 2 * COLUMNS, there, _mm512_srli_epi32(c, 16));
  }
}

template <class F>
void replace(Kernel &kernel) {
  kernel.product = product<F>;
  kernel.split = split;
  kernel.column_bytes = PARTS * 2;
  kernel.chunk = COLUMNS;
  kernel.rows = 2 * SIDE;
  kernel.places = nullptr;
  kernel.scratch_bytes_per_chunk = (2 + PARTS) * TILE;  // both ways of many tokens
}

}  // namespace amx

const Tier *amx_tier() {
  static const Tier tier = [] {
    Tier t = *avx512_tier();
    t.name = "amx";
    amx::replace<amx::BFloat16>(t.kernels[static_cast<int>(Format::bfloat16)]);
    amx::replace<amx::E2m1<NVFP4_GROUP>>(t.kernels[static_cast<int>(Format::nvfp4)]);
    amx::replace<amx::E2m1<MXFP4_GROUP>>(t.kernels[static_cast<int>(Format::mxfp4)]);
    return t;
  }();
  return &tier;
}

}  // namespace headrace
