// The softmax as positions come by, once for all instruction sets. Included by one translation unit a
// tier, after kernels.h.
//
// A row's sums do not depend on the rows beside it: it takes the positions in blocks that begin
// where its span does, and each of its numbers has an accumulator of its own.
#pragma once

#include <cmath>

#include "attention.h"

namespace headrace::HEADRACE_TIER {

constexpr int BLOCK = ATTENTION_BLOCK;
constexpr int64_t STEP = 2 * W;              // columns
constexpr int SIDE = W == 16 ? 4 : 2;        // vectors of a register tile beside four rows

struct WideNumbers {
  using Number = float;
  static constexpr int lane = 1;
  static HR_INLINE void load(const Number *p, F32 &first, F32 &second) {
    first = load_f32(p);
    second = load_f32(p + W);
  }
  static HR_INLINE float one(Number v) { return v; }
};

struct Bfloat16Numbers {
  using Number = uint16_t;
  static constexpr int lane = 2;
  static HR_INLINE void load(const Number *p, F32 &even, F32 &odd) {
    const U32 two = load_u32<true>(reinterpret_cast<const uint8_t *>(p), 4 * W);
    even = bf16_even(two);
    odd = bf16_odd(two);
  }
  static HR_INLINE float one(Number v) {
    const uint32_t bits = static_cast<uint32_t>(v) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
};

// Up to BLOCK positions of a span.
template <class N>
struct Block {
  const typename N::Number *keys[BLOCK], *values[BLOCK];
  int64_t base;
  int count;

  HR_INLINE void read(const Span &span, int64_t begin) {
    base = begin;
    count = static_cast<int>(span.end - begin < BLOCK ? span.end - begin : BLOCK);
    for (int j = 0; j < count; ++j) {
      const int64_t offset = span.offset(begin + j);
      keys[j] = reinterpret_cast<const typename N::Number *>(span.keys + offset);
      values[j] = reinterpret_cast<const typename N::Number *>(span.values + offset);
    }
  }
  HR_INLINE int seen_by(const QueryRows &rows, int64_t r) const {
    const int64_t positions = rows.context + r / rows.group + 1 - base;
    return positions < count ? static_cast<int>(positions) : count;
  }
};

inline float exponential_of(float x) {
  alignas(64) float lanes[W];
  store_f32(lanes, exponential(broadcast(x)));
  return lanes[0];
}

// Scores of R rows become weights. `factors` is what the rows' sums so far are to be multiplied by.
// The rows take turns, for each step of one waits for the one before.
template <int R>
HR_INLINE void weigh(float (*scores)[BLOCK], const int *seen, float *most, float *totals,
                     float *factors) {
  static_assert(R <= W);
  float best[R], reference[R];
  for (int r = 0; r < R; ++r) {
    for (int j = seen[r]; j < BLOCK; ++j) scores[r][j] = -INFINITY;
    F32 all = load_f32(scores[r]);
    for (int j = W; j < BLOCK; j += W) all = max(load_f32(scores[r] + j), all);
    best[r] = greatest(all);
  }
  alignas(64) float fallen[W] = {};
  for (int r = 0; r < R; ++r) {
    const float before = most[r];
    most[r] = best[r] > before ? best[r] : before;
    // Where nothing but minus infinity has come yet, weights are zero and not NaN.
    reference[r] = most[r] == -INFINITY ? 0.0f : most[r];
    fallen[r] = before - reference[r];
  }
  store_f32(fallen, exponential(load_f32(fallen)));
  F32 sums[R];
  for (int r = 0; r < R; ++r) sums[r] = zero();
  for (int j = 0; j < BLOCK; j += W)
    for (int r = 0; r < R; ++r) {
      const F32 weight = exponential(sub(load_f32(scores[r] + j), broadcast(reference[r])));
      store_f32(scores[r] + j, weight);
      sums[r] = add(sums[r], weight);
    }
  for (int r = 0; r < R; ++r) {
    factors[r] = fallen[r];
    totals[r] = totals[r] * factors[r] + reduce(sums[r]);
  }
}

// Of rows with the block's keys as they lie.
template <class N, int R>
HR_INLINE void score(const QueryRows &rows, int64_t r, const Block<N> &block,
                     float (*scores)[BLOCK]) {
  const float *q = rows.q + r * rows.dim;
  for (int j = 0; j < block.count; ++j) {
    F32 products[R];
    for (int i = 0; i < R; ++i) products[i] = zero();
    for (int64_t d = 0; d < rows.dim; d += STEP) {
      F32 a, b;
      N::load(block.keys[j] + d, a, b);
      for (int i = 0; i < R; ++i) {
        products[i] = fma(a, load_f32(q + i * rows.dim + d), products[i]);
        products[i] = fma(b, load_f32(q + i * rows.dim + d + W), products[i]);
      }
    }
    for (int i = 0; i < R; ++i) scores[i][j] = reduce(products[i]);
  }
}

// Of rows with turned keys.
template <int R>
HR_INLINE void score_turned(const QueryRows &rows, int64_t r, float (*scores)[BLOCK]) {
  const float *q = rows.q + r * rows.dim;
  for (int first = 0; first < BLOCK; first += SIDE * W) {
    F32 sums[R][SIDE], keys[SIDE];
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < SIDE; ++v) sums[i][v] = zero();
    for (int64_t d = 0; d < rows.dim; ++d) {
      for (int v = 0; v < SIDE; ++v) keys[v] = load_f32(rows.turned + d * BLOCK + first + v * W);
      for (int i = 0; i < R; ++i) {
        const F32 by = broadcast(q[i * rows.dim + d]);
        for (int v = 0; v < SIDE; ++v) sums[i][v] = fma(keys[v], by, sums[i][v]);
      }
    }
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < SIDE; ++v) store_f32(scores[i] + first + v * W, sums[i][v]);
  }
}

// Sums of columns d .. d + P * STEP, times their factors, plus the weighted values of positions.
template <class N, int R, int P>
HR_INLINE void add_columns(float *sums, int64_t dim, const float *factors, const Block<N> &block,
                           int64_t d, const float (*weights)[BLOCK], int begin, int end) {
  F32 added[R][2 * P], values[2 * P];
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < 2 * P; ++v)
      added[i][v] = mul(load_f32(sums + i * dim + d + v * W), broadcast(factors[i]));
  for (int j = begin; j < end; ++j) {
    for (int p = 0; p < P; ++p)
      N::load(block.values[j] + d + p * STEP, values[2 * p], values[2 * p + 1]);
    for (int i = 0; i < R; ++i) {
      const F32 by = broadcast(weights[i][j]);
      for (int v = 0; v < 2 * P; ++v) added[i][v] = fma(values[v], by, added[i][v]);
    }
  }
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < 2 * P; ++v) store_f32(sums + i * dim + d + v * W, added[i][v]);
}

template <class N, int R>
HR_INLINE void add_values(float *sums, int64_t dim, const float *factors, const Block<N> &block,
                          const float (*weights)[BLOCK], int begin, int end) {
  int64_t d = 0;
  if constexpr (SIDE > 2)
    for (; d + 2 * STEP <= dim; d += 2 * STEP)
      add_columns<N, R, 2>(sums, dim, factors, block, d, weights, begin, end);
  for (; d < dim; d += STEP)
    add_columns<N, R, 1>(sums, dim, factors, block, d, weights, begin, end);
}

template <class N, int R, bool turned>
HR_INLINE void add_rows(const QueryRows &rows, int64_t r, const Block<N> &block) {
  alignas(64) float weights[R][BLOCK];
  float factors[R];
  int seen[R], all = block.count;
  if constexpr (turned)
    score_turned<R>(rows, r, weights);
  else
    score<N, R>(rows, r, block, weights);
  for (int i = 0; i < R; ++i) {
    seen[i] = block.seen_by(rows, r + i);
    if (seen[i] < all) all = seen[i];
  }
  weigh<R>(weights, seen, rows.greatest + r, rows.totals + r, factors);
  float *sums = rows.sums + r * rows.dim;
  add_values<N, R>(sums, rows.dim, factors, block, weights, 0, all);
  constexpr float one = 1.0f;
  for (int i = 0; i < R; ++i)
    if (seen[i] > all)
      add_values<N, 1>(sums + i * rows.dim, rows.dim, &one, block, weights + i, all, seen[i]);
}

template <class N>
HR_INLINE void turn_keys(const QueryRows &rows, const Block<N> &block) {
  for (int64_t d = 0; d < rows.dim; ++d) {
    float *to = rows.turned + d * BLOCK;
    for (int j = 0; j < block.count; ++j) to[j] = N::one(block.keys[j][d]);
    for (int j = block.count; j < BLOCK; ++j) to[j] = 0.0f;
  }
}

template <class N, bool turned>
void attend(const Span &span, const QueryRows &rows) {
  Block<N> block;
  for (int64_t base = span.begin; base < span.end; base += BLOCK) {
    block.read(span, base);
    if constexpr (turned) turn_keys<N>(rows, block);
    // Rows whose token comes before the block see nothing of it.
    int64_t r = base > rows.context ? (base - rows.context) * rows.group : 0;
    for (; r + 4 <= rows.rows; r += 4) add_rows<N, 4, turned>(rows, r, block);
    for (; r < rows.rows; ++r) add_rows<N, 1, turned>(rows, r, block);
  }
}

inline AttentionKernel attention_kernel() {
  return {{attend<WideNumbers, false>, attend<Bfloat16Numbers, false>},
          {attend<WideNumbers, true>, attend<Bfloat16Numbers, true>},
          W,
          {WideNumbers::lane, Bfloat16Numbers::lane},
          exponential_of};
}

}  // namespace headrace::HEADRACE_TIER
