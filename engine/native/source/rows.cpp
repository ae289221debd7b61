// What is done to each row of a layer's activations alone. Plain C++: with fixed lanes its sums are
// the same on every instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine.h"

namespace headrace {

namespace {

constexpr int64_t ROWS_AT_ONCE = 16;
constexpr int LANES = 16;

// Calls work(first, last) for blocks of rows, with as many threads as so many numbers are worth.
template <class Work>
void by_rows(Engine &engine, int64_t rows, int64_t numbers, Work work) {
  struct Context {
    Work &work;
    int64_t rows;
  } context{work, rows};
  const auto run = [](void *c, int, int64_t task, int) {
    const Context &call = *static_cast<Context *>(c);
    const int64_t first = task * ROWS_AT_ONCE;
    call.work(first, std::min(call.rows, first + ROWS_AT_ONCE));
  };
  engine.pool.run({1, {divide_up(rows, ROWS_AT_ONCE)}, run, &context},
                  threads_for(engine, numbers));
}

float sum_of_squares(const float *x, int64_t columns) {
  float lanes[LANES] = {};
  int64_t i = 0;
  for (; i + LANES <= columns; i += LANES)
    for (int l = 0; l < LANES; ++l) lanes[l] += x[i + l] * x[i + l];
  for (int l = 0; i + l < columns; ++l) lanes[l] += x[i + l] * x[i + l];
  for (int n = LANES / 2; n > 0; n /= 2)
    for (int l = 0; l < n; ++l) lanes[l] += lanes[l + n];
  return lanes[0];
}

}  // namespace

int32_t rms_norm(Engine &engine, const float *x, const float *added, const float *weight, float eps,
                 int64_t rows, int64_t columns, float *sum, float *out) {
  by_rows(engine, rows, rows * columns, [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float *row = x + r * columns;
      float *to = out + r * columns;
      if (added != nullptr) {
        const float *other = added + r * columns;
        float *both = sum + r * columns;
        for (int64_t i = 0; i < columns; ++i) both[i] = row[i] + other[i];
        row = both;
      }
      const float mean = sum_of_squares(row, columns) / static_cast<float>(columns);
      const float by = 1.0f / std::sqrt(mean + eps);
      for (int64_t i = 0; i < columns; ++i) to[i] = row[i] * by * weight[i];
    }
  });
  return HEADRACE_OK;
}

namespace {

// Whether a logit counts for more than one that comes before it.
bool above(float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

void pick(const float *logits, int64_t experts, int64_t top_k, bool normalise, int64_t *ids,
          float *weights) {
  int64_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const float logit = logits[e];
    if (count == top_k && !above(logit, weights[count - 1])) continue;
    if (count < top_k) ++count;
    int64_t at = count - 1;
    for (; at > 0 && above(logit, weights[at - 1]); --at) {
      weights[at] = weights[at - 1];
      ids[at] = ids[at - 1];
    }
    weights[at] = logit;
    ids[at] = e;
  }
  const float greatest = weights[0];
  float total = 0.0f;
  if (!normalise)
    for (int64_t e = 0; e < experts; ++e) total += std::exp(logits[e] - greatest);
  for (int64_t i = 0; i < top_k; ++i) {
    weights[i] = std::exp(weights[i] - greatest);
    if (normalise) total += weights[i];
  }
  for (int64_t i = 0; i < top_k; ++i) weights[i] /= total;
}

}  // namespace

int32_t route(Engine &engine, const float *router, int64_t experts, int64_t hidden, const void *x,
              int32_t x_type, int64_t tokens, int64_t top_k, bool normalise, int64_t *ids,
              float *weights) {
  if (!engine.logits.reserve(tokens * experts * 4)) return HEADRACE_OUT_OF_MEMORY;
  const headrace_matrix matrix{experts, hidden, router, nullptr, nullptr, nullptr,
                               static_cast<int32_t>(Format::float32)};
  const float *logits = engine.logits.floats();
  const int32_t status = products(engine, &matrix, 1, x, x_type, tokens, engine.logits.floats());
  if (status != HEADRACE_OK) return status;
  // Comparing one takes about as long as a vector of products.
  by_rows(engine, tokens, tokens * experts * LANES, [=](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t)
      pick(logits + t * experts, experts, top_k, normalise, ids + t * top_k, weights + t * top_k);
  });
  return HEADRACE_OK;
}

// Compiled without fused multiply-add: every product and every sum is rounded.
int32_t moe_combine(Engine &engine, const float *rows, const float *weights, int64_t tokens,
                    int64_t routes, int64_t hidden, float *out) {
  by_rows(engine, tokens, tokens * routes * hidden, [=](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      float *total = out + t * hidden;
      for (int64_t j = 0; j < routes; ++j) {
        const float *row = rows + (t * routes + j) * hidden;
        const float weight = weights[t * routes + j];
        if (j == 0)
          for (int64_t i = 0; i < hidden; ++i) total[i] = row[i] * weight;
        else
          for (int64_t i = 0; i < hidden; ++i) total[i] += row[i] * weight;
      }
    }
  });
  return HEADRACE_OK;
}

int32_t add_gated(Engine &engine, float *out, const float *added, const float *gates, int64_t rows,
                  int64_t columns) {
  by_rows(engine, rows, rows * columns, [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float by = gates == nullptr ? 1.0f : 1.0f / (1.0f + std::exp(-gates[r]));
      float *to = out + r * columns;
      const float *from = added + r * columns;
      for (int64_t i = 0; i < columns; ++i) to[i] += from[i] * by;
    }
  });
  return HEADRACE_OK;
}

// `heads` rows of `dim` with their pairs (i, i + half) turned.
void turn(const float *from, const float *cosines, const float *sines, int64_t heads, int64_t dim,
          int64_t half, float *to) {
  std::memcpy(to, from, static_cast<size_t>(heads * dim) * 4);
  for (int64_t h = 0; h < heads * dim; h += dim)
    for (int64_t i = 0; i < half; ++i) {
      const float first = from[h + i], second = from[h + half + i];
      to[h + i] = first * cosines[i] - second * sines[i];
      to[h + half + i] = second * cosines[i] + first * sines[i];
    }
}

int32_t rotate_and_store(Engine &engine, const headrace_attention_layout &layout,
                         const headrace_rotation &rotation) {
  const headrace_rotation &t = rotation;
  const int64_t q_size = layout.heads * layout.head_dim;
  const int64_t size = layout.kv_heads * layout.head_dim;
  if (t.rows < 0 || t.half < 0 || 2 * t.half > layout.head_dim ||
      layout.type != HEADRACE_X_FLOAT32)
    return HEADRACE_BAD_ARGUMENT;
  for (int64_t r = 0; r < t.rows; ++r)
    if (t.pages[r] < 0 || t.pages[r] >= layout.pages || t.offsets[r] < 0 ||
        t.offsets[r] >= layout.page_tokens)
      return HEADRACE_BAD_ARGUMENT;
  by_rows(engine, t.rows, t.rows * (q_size + 2 * size), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float *c = t.cosines + r * t.half, *s = t.sines + r * t.half;
      const int64_t place = t.pages[r] * layout.page_stride + t.offsets[r] * layout.token_stride;
      float *key = static_cast<float *>(layout.keys) + place;
      float *value = static_cast<float *>(layout.values) + place;
      turn(t.q + r * q_size, c, s, layout.heads, layout.head_dim, t.half, t.turned + r * q_size);
      turn(t.k + r * size, c, s, layout.kv_heads, layout.head_dim, t.half, key);
      std::memcpy(value, t.v + r * size, static_cast<size_t>(size) * 4);
    }
  });
  return HEADRACE_OK;
}

}  // namespace headrace
