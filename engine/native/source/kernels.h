// The products, once for all formats and instruction sets. Included by one translation unit a tier,
// after the tier's vectors and the formats.
//
// A format is a struct with
//   chunk, parts         columns it decodes at once, a power of two to 256; vectors they make
//   place(i)             where column i of a chunk lies in them
//   shares, scaled       equal shares of the parts, each with a sum of its own; whether that sum is
//                        multiplied by a vector of scales, or the parts are the weights
//   global               whether a row's sum is multiplied by a number
//   Row, row(m, r)       where row r lies
//   visit<full>(row, c, valid, part, close)  part(p, vector) for each part of chunk c and, behind
//                        each share, close(its scales) or close(). Parts come in order: it is the
//                        order of summation. Unless full, only `valid` columns exist, the others
//                        are zero.
//   code_bytes, scale_bytes        what a chunk takes in a row's `codes` and `scales`
//
// The order of summation is part of the interface: each output has accumulators of its own, takes
// the shares in order and is reduced by one tree. Shares keep sums short: a multiply-add waits for
// the one before it, and only those of different shares are under way together. How many rows and
// tokens go together changes the speed and not one bit.
#pragma once

namespace headrace::HEADRACE_TIER {

// The place of a column where each lane takes so many neighbours.
constexpr int neighbours(int i, int lane) {
  const int within = i % (W * lane);
  return i - within + within % lane * W + within / lane;
}

template <class F>
HR_INLINE float finish(const typename F::Row &row, F32 sum) {
  if constexpr (F::global) return reduce(sum) * row.global;
  return reduce(sum);
}

// --- few tokens: weights go from memory through registers ----------------------------------------

// How far ahead of the codes memory is asked for: the processor's own prefetching stops at every
// page and stalls on rows of a kilobyte. Too near comes too late, too far is evicted again;
// `headrace bench host` shows what a change does.
constexpr int64_t AHEAD = 3072;

template <class F>
HR_INLINE void fetch_ahead(const typename F::Row &row, int64_t c) {
  const uint8_t *codes = row.codes + c * F::code_bytes + AHEAD;
  for (int i = 0; i < F::code_bytes; i += 64) HR_PREFETCH(codes + i);
  if constexpr (F::scale_bytes > 0)
    HR_PREFETCH(row.scales + c * F::scale_bytes + AHEAD / F::code_bytes * F::scale_bytes);
}

HR_INLINE F32 closed(F32 share, F32 sum, F32 scale) { return fma(share, scale, sum); }
HR_INLINE F32 closed(F32 share, F32 sum) { return add(share, sum); }

template <class F, bool full, int T>
HR_INLINE void step(const typename F::Row &row, int64_t c, int valid, const float *const *x,
                    F32 *sums) {
  const int64_t first = c * F::parts;
  F32 parts[T];
  for (int t = 0; t < T; ++t) parts[t] = zero();
  F::template visit<full>(
      row, c, valid,
      [&](int p, F32 w) {
        for (int t = 0; t < T; ++t) parts[t] = fma(w, load_f32(x[t] + (first + p) * W), parts[t]);
      },
      [&](auto... scale) {
        for (int t = 0; t < T; ++t) {
          sums[t] = closed(parts[t], sums[t], scale...);
          parts[t] = zero();
        }
      });
}

// One row after the other: a single stream through memory is what prefetching follows best.
template <class F, int T>
void few_tokens(const Matrix &m, int64_t first, int64_t row_begin, int64_t count,
                const float *const *x, float *const *out) {
  const int64_t whole = m.columns / F::chunk;
  const int rest = static_cast<int>(m.columns % F::chunk);
  const float *local[T];
  for (int t = 0; t < T; ++t) local[t] = x[t];
  for (int64_t r = row_begin; r < row_begin + count; ++r) {
    const typename F::Row row = F::row(m, first + r);
    F32 sums[T];
    for (int t = 0; t < T; ++t) sums[t] = zero();
    for (int64_t c = 0; c < whole; ++c) {
      fetch_ahead<F>(row, c);
      step<F, true, T>(row, c, F::chunk, local, sums);
    }
    if (rest) step<F, false, T>(row, whole, rest, local, sums);
    for (int t = 0; t < T; ++t) out[t][r] = finish<F>(row, sums[t]);
  }
}

// --- several tokens: rows are decoded once into scratch, then meet all tokens --------------------

template <class F>
constexpr int64_t vectors_per_chunk() {
  return F::parts + (F::scaled ? F::shares : 0);
}

template <class F, bool full>
HR_INLINE void decode_chunk(const typename F::Row &row, int64_t c, int valid, float *tile) {
  float *at = tile + c * vectors_per_chunk<F>() * W;
  const auto keep = [&at](F32 v) {
    store_f32(at, v);
    at += W;
  };
  F::template visit<full>(
      row, c, valid, [&](int, F32 w) { keep(w); }, [&](auto... scale) { (keep(scale), ...); });
}

template <class F>
void decode_row(const typename F::Row &row, int64_t columns, float *tile) {
  const int64_t whole = columns / F::chunk;
  const int rest = static_cast<int>(columns % F::chunk);
  for (int64_t c = 0; c < whole; ++c) {
    fetch_ahead<F>(row, c);
    decode_chunk<F, true>(row, c, F::chunk, tile);
  }
  if (rest) decode_chunk<F, false>(row, whole, rest, tile);
}

template <class F, int R, int T>
void tile_product(const typename F::Row *rows, const float *tile, int64_t chunks,
                  const float *const *x, float *const *out, int64_t row) {
  constexpr int64_t share = F::parts / F::shares, share_size = share + (F::scaled ? 1 : 0);
  const int64_t row_size = chunks * vectors_per_chunk<F>();
  F32 sums[R][T];
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) sums[r][t] = zero();
  for (int64_t s = 0; s < chunks * F::shares; ++s) {
    const float *at = tile + s * share_size * W;
    F32 parts[R][T];
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) parts[r][t] = zero();
    for (int p = 0; p < share; ++p) {
      F32 w[R];
      for (int r = 0; r < R; ++r) w[r] = load_f32(at + (r * row_size + p) * W);
      for (int t = 0; t < T; ++t) {
        const F32 v = load_f32(x[t] + (s * share + p) * W);
        for (int r = 0; r < R; ++r) parts[r][t] = fma(w[r], v, parts[r][t]);
      }
    }
    for (int r = 0; r < R; ++r) {
      if constexpr (F::scaled) {
        const F32 scale = load_f32(at + (r * row_size + share) * W);
        for (int t = 0; t < T; ++t) sums[r][t] = closed(parts[r][t], sums[r][t], scale);
      } else {
        for (int t = 0; t < T; ++t) sums[r][t] = closed(parts[r][t], sums[r][t]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) out[t][row + r] = finish<F>(rows[r], sums[r][t]);
}

template <class F, int R>
void many_tokens(const Matrix &m, int64_t first, int64_t row, const float *const *x,
                 int64_t tokens, float *const *out, float *tile) {
  typename F::Row rows[R];
  const int64_t chunks = (m.columns + F::chunk - 1) / F::chunk;
  for (int r = 0; r < R; ++r) {
    rows[r] = F::row(m, first + row + r);
    decode_row<F>(rows[r], m.columns, tile + r * chunks * vectors_per_chunk<F>() * W);
  }
  int64_t t = 0;
  for (; t + TOKENS <= tokens; t += TOKENS)
    tile_product<F, R, TOKENS>(rows, tile, chunks, x + t, out + t, row);
  if constexpr (TOKENS > 2)
    for (; t + 2 <= tokens; t += 2) tile_product<F, R, 2>(rows, tile, chunks, x + t, out + t, row);
  for (; t < tokens; ++t) tile_product<F, R, 1>(rows, tile, chunks, x + t, out + t, row);
}

// Up to FEW_TOKENS are served in fours and rows are decoded anew for each four, from the first
// cache: the way through scratch has to pay for writing and reading it, which takes more tokens.
constexpr int64_t FEW_ROWS = 8;

template <class F>
void few_rows(const Matrix &m, int64_t first, int64_t row, int64_t count, const float *const *x,
              int64_t tokens, float *const *out) {
  int64_t t = 0;
  for (; t + 4 <= tokens; t += 4) few_tokens<F, 4>(m, first, row, count, x + t, out + t);
  switch (tokens - t) {
    case 1:
      return few_tokens<F, 1>(m, first, row, count, x + t, out + t);
    case 2:
      return few_tokens<F, 2>(m, first, row, count, x + t, out + t);
    case 3:
      return few_tokens<F, 3>(m, first, row, count, x + t, out + t);
  }
}

template <class F>
void product(const Matrix &m, int64_t first, int64_t count, const float *const *x, int64_t tokens,
             float *const *out, void *scratch) {
  int64_t row = 0;
  if (tokens <= FEW_TOKENS) {
    for (; row + FEW_ROWS <= count; row += FEW_ROWS)
      few_rows<F>(m, first, row, FEW_ROWS, x, tokens, out);
    return few_rows<F>(m, first, row, count - row, x, tokens, out);
  }
  float *tile = static_cast<float *>(scratch);
  for (; row + ROWS <= count; row += ROWS)
    many_tokens<F, ROWS>(m, first, row, x, tokens, out, tile);
  for (; row < count; ++row) many_tokens<F, 1>(m, first, row, x, tokens, out, tile);
}

// --- a row as plain numbers -----------------------------------------------------------------------

template <class F>
void decode(const Matrix &m, int64_t r, float *out) {
  const typename F::Row row = F::row(m, r);
  alignas(64) float parts[F::chunk];
  alignas(64) float scales[F::shares * W];
  const auto keep = [&](int p, F32 w) { store_f32(parts + p * W, w); };
  for (int64_t begin = 0; begin < m.columns; begin += F::chunk) {
    const int64_t left = m.columns - begin;
    const int valid = static_cast<int>(left < F::chunk ? left : F::chunk);
    float *at = scales;
    const auto keep_scales = [&at](auto... scale) {
      (store_f32(at, scale), ...);
      at += W;
    };
    if (valid == F::chunk)
      F::template visit<true>(row, begin / F::chunk, valid, keep, keep_scales);
    else
      F::template visit<false>(row, begin / F::chunk, valid, keep, keep_scales);
    for (int i = 0; i < valid; ++i) {
      const int place = F::place(i);
      float value = parts[place];
      if constexpr (F::scaled) {
        float by = scales[place / W / (F::parts / F::shares) * W + place % W];
        if constexpr (F::global) by = by * row.global;
        value = value * by;
      }
      out[begin + i] = value;
    }
  }
}

template <class F>
struct Places {
  uint8_t of[F::chunk] = {};
  bool in_order = true;
  constexpr Places() {
    for (int i = 0; i < F::chunk; ++i) {
      of[i] = static_cast<uint8_t>(F::place(i));
      in_order = in_order && F::place(i) == i;
    }
  }
};

template <class F>
Kernel kernel() {
  static_assert(F::chunk == F::parts * W && F::chunk <= 256 && (F::chunk & (F::chunk - 1)) == 0);
  static constexpr Places<F> places;
  Kernel k;
  k.product = product<F>;
  k.decode = decode<F>;
  k.chunk = F::chunk;
  k.places = places.of;
  k.in_order = places.in_order;
  k.scratch_bytes_per_chunk = ROWS * vectors_per_chunk<F>() * W * 4;
  return k;
}

// --- elementwise ----------------------------------------------------------------------------------

// Within 2 units in the last place; overflows to infinity, underflows to zero, keeps NaN.
HR_INLINE F32 exponential(F32 x) {
  // min and max return their second operand where one is NaN.
  x = min(broadcast(89.0f), max(broadcast(-104.0f), x));
  const F32 n = nearest(mul(x, broadcast(1.44269504f)));
  F32 r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  F32 p = broadcast(1.0f / 5040);
  p = fma(p, r, broadcast(1.0f / 720));
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return times_power_of_two(p, n);
}

// x times the logistic function of `inner`
HR_INLINE F32 gated(F32 x, F32 inner) {
  const F32 one = broadcast(1.0f);
  return div(x, add(one, exponential(sub(zero(), inner))));
}

HR_INLINE F32 glu_vector(int activation, F32 gate, F32 up) {
  if (activation == 0) return mul(gated(gate, gate), up);
  if (activation == 1) {
    const F32 cube = mul(mul(gate, gate), gate);
    const F32 inner = mul(broadcast(2 * 0.7978845608f), fma(cube, broadcast(0.044715f), gate));
    return mul(gated(gate, inner), up);
  }
  const F32 limit = broadcast(7.0f);
  gate = min(limit, gate);
  up = max(broadcast(-7.0f), min(limit, up));
  return mul(gated(gate, mul(broadcast(1.702f), gate)), add(up, broadcast(1.0f)));
}

// A value's bits depend on gate and up only: what is left over goes through a whole vector too.
inline void glu(int activation, const float *gate, const float *up, float *out, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W)
    store_f32(out + i, glu_vector(activation, load_f32(gate + i), load_f32(up + i)));
  if (i == count) return;
  alignas(64) float rest[3][W] = {};
  for (int64_t j = 0; j < count - i; ++j) {
    rest[0][j] = gate[i + j];
    rest[1][j] = up[i + j];
  }
  store_f32(rest[2], glu_vector(activation, load_f32(rest[0]), load_f32(rest[1])));
  for (int64_t j = 0; j < count - i; ++j) out[i + j] = rest[2][j];
}

inline uint64_t read(const uint8_t *bytes, int64_t count) {
  U32 sums[4] = {zero_u32(), zero_u32(), zero_u32(), zero_u32()};
  int64_t i = 0;
  for (; i + 16 * W <= count; i += 16 * W)
    for (int j = 0; j < 4; ++j)
      sums[j] = add_u32(sums[j], load_u32<true>(bytes + i + j * 4 * W, 4 * W));
  uint64_t total = 0;
  for (int j = 0; j < 4; ++j) total += reduce_u32(sums[j]);
  for (; i < count; ++i) total += bytes[i];
  return total;
}

}  // namespace headrace::HEADRACE_TIER
