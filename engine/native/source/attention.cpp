// Causal attention of ragged sequences over pages: which rows meet which positions, in which task.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine.h"

namespace headrace {

namespace {

// Rows of one task: what turning keys for them is shared by.
constexpr int64_t TASK_ROWS = 192;
// From so many tokens on, keys are turned.
constexpr int64_t MANY_TOKENS = 8;
// A lone token's context is shared out in spans, since its heads may be fewer than the threads. They
// begin at the same positions however many threads there are.
constexpr int64_t SPAN_POSITIONS = 512;

struct Task {
  const headrace_sequence *sequence;
  int64_t head, first, tokens;  // of keys; of the sequence's tokens
  int64_t begin, end;           // positions
  int64_t partial;              // its number among those of a token in spans, -1 for a task alone
};

struct Split {
  const headrace_sequence *sequence;
  int64_t head, partial, spans;
};

struct Attention {
  Engine &engine;
  const headrace_attention_layout &layout;
  const void *q;
  float *out;
  int64_t group;
  std::vector<int64_t> places;  // where the columns of a row of few tokens lie, and of all sums
  std::vector<Task> tasks;
  std::vector<Split> splits;

  int64_t partial_floats() const { return group * (layout.head_dim + 2); }
};

float widened(const void *values, int64_t i) {
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t *>(values)[i]) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Columns in the tier's order become columns as they are, over the total of the weights.
void finish(const Attention &a, const float *sums, float total, float *out) {
  const float by = 1.0f / total;
  if (a.layout.type == HEADRACE_X_FLOAT32) {  // in their own order
    for (int64_t i = 0; i < a.layout.head_dim; ++i) out[i] = sums[i] * by;
    return;
  }
  for (int64_t i = 0; i < a.layout.head_dim; ++i)
    out[i] = sums[a.places[static_cast<size_t>(i)]] * by;
}

float *output(const Attention &a, const headrace_sequence &s, int64_t token, int64_t head) {
  return a.out + ((s.start + token) * a.layout.heads + head) * a.layout.head_dim;
}

void attend(const Attention &a, const Task &task, int thread) {
  const headrace_attention_layout &l = a.layout;
  const headrace_sequence &s = *task.sequence;
  const AttentionKernel &kernel = a.engine.tier->attention;
  const bool many = s.length >= MANY_TOKENS;
  const int64_t size = l.type == HEADRACE_X_FLOAT32 ? 4 : 2;
  const int64_t head_bytes = task.head * l.head_dim * size;
  const int64_t rows = task.tokens * a.group;
  float *turned = a.engine.scratch[static_cast<size_t>(thread)].floats();
  float *q = turned + ATTENTION_BLOCK * l.head_dim;
  float *sums = q + rows * l.head_dim;
  if (task.partial >= 0) sums = a.engine.inner.floats() + task.partial * a.partial_floats();
  float *greatest = sums + rows * l.head_dim, *totals = greatest + rows;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = s.start + task.first + r / a.group;
    const int64_t at = (token * l.heads + task.head * a.group + r % a.group) * l.head_dim;
    float *row = q + r * l.head_dim;
    if (l.type == HEADRACE_X_FLOAT32) {
      const float *from = static_cast<const float *>(a.q) + at;
      for (int64_t i = 0; i < l.head_dim; ++i) row[i] = l.scale * from[i];
    } else {
      for (int64_t i = 0; i < l.head_dim; ++i)
        row[many ? i : a.places[static_cast<size_t>(i)]] = l.scale * widened(a.q, at + i);
    }
    greatest[r] = -INFINITY;
    totals[r] = 0.0f;
  }
  std::memset(sums, 0, static_cast<size_t>(rows * l.head_dim) * 4);
  const Span span{static_cast<const uint8_t *>(l.keys) + head_bytes,
                  static_cast<const uint8_t *>(l.values) + head_bytes,
                  s.pages,
                  l.page_tokens,
                  l.page_stride * size,
                  l.token_stride * size,
                  task.begin,
                  task.end};
  const QueryRows query{rows, a.group, s.context + task.first, l.head_dim, q, sums, turned,
                        greatest, totals};
  (many ? kernel.many : kernel.few)[l.type](span, query);
  if (task.partial >= 0) return;
  for (int64_t r = 0; r < rows; ++r)
    finish(a, sums + r * l.head_dim, totals[r],
           output(a, s, task.first + r / a.group, task.head * a.group + r % a.group));
}

void join(const Attention &a, const Split &split, int thread) {
  const int64_t dim = a.layout.head_dim;
  float *joined = a.engine.scratch[static_cast<size_t>(thread)].floats();
  const float *partials = a.engine.inner.floats() + split.partial * a.partial_floats();
  for (int64_t r = 0; r < a.group; ++r) {
    const float *greatest = partials + a.group * dim + r, *totals = greatest + a.group;
    float most = -INFINITY, total = 0.0f;
    for (int64_t i = 0; i < split.spans; ++i)
      most = std::max(most, greatest[i * a.partial_floats()]);
    std::memset(joined, 0, static_cast<size_t>(dim) * 4);
    for (int64_t i = 0; i < split.spans; ++i) {
      const float *sums = partials + i * a.partial_floats() + r * dim;
      const float factor =
          a.engine.tier->attention.exponential(greatest[i * a.partial_floats()] - most);
      total += totals[i * a.partial_floats()] * factor;
      for (int64_t d = 0; d < dim; ++d) joined[d] += sums[d] * factor;
    }
    finish(a, joined, total, output(a, *split.sequence, 0, split.head * a.group + r));
  }
}

// Whether what a sequence reads is there.
bool sound(const headrace_attention_layout &l, const headrace_sequence &s) {
  if (s.length < 1 || s.context < 0 || s.page_count < divide_up(s.context + s.length, l.page_tokens))
    return false;
  return std::all_of(s.pages, s.pages + divide_up(s.context + s.length, l.page_tokens),
                     [&](int64_t page) { return page >= 0 && page < l.pages; });
}

// Returns how many multiplications there are.
int64_t plan(Attention &a, const headrace_sequence *sequences, int64_t count) {
  const int64_t block = std::max<int64_t>(1, TASK_ROWS / a.group);
  int64_t partials = 0, products = 0;
  for (const headrace_sequence *s = sequences; s < sequences + count; ++s) {
    const int64_t spans = s->length == 1 ? divide_up(s->context + 1, SPAN_POSITIONS) : 1;
    for (int64_t head = 0; head < a.layout.kv_heads; ++head) {
      if (spans > 1) {
        a.splits.push_back({s, head, partials, spans});
        for (int64_t i = 0; i < spans; ++i)
          a.tasks.push_back({s, head, 0, 1, i * SPAN_POSITIONS,
                             std::min((i + 1) * SPAN_POSITIONS, s->context + 1), partials++});
        continue;
      }
      for (int64_t first = 0; first < s->length; first += block) {
        const int64_t tokens = std::min(block, s->length - first);
        a.tasks.push_back({s, head, first, tokens, 0, s->context + first + tokens, -1});
      }
    }
    products += s->length * (s->context + (s->length + 1) / 2);
  }
  return products * a.layout.heads * a.layout.head_dim * 2;
}

void work(void *context, int phase, int64_t task, int thread) {
  const Attention &a = *static_cast<const Attention *>(context);
  if (phase == 0) return attend(a, a.tasks[static_cast<size_t>(task)], thread);
  join(a, a.splits[static_cast<size_t>(task)], thread);
}

}  // namespace

int32_t attention(Engine &engine, const headrace_attention_layout &layout,
                  const headrace_sequence *sequences, int64_t count, const void *q, float *out) {
  if (layout.heads < 1 || layout.kv_heads < 1 || layout.heads % layout.kv_heads ||
      layout.head_dim < 1 || layout.head_dim % (2 * engine.tier->attention.width) || layout.page_tokens < 1)
    return HEADRACE_BAD_ARGUMENT;
  for (int64_t i = 0; i < count; ++i)
    if (!sound(layout, sequences[i])) return HEADRACE_BAD_ARGUMENT;
  Attention a{engine, layout, q, out, layout.heads / layout.kv_heads, {}, {}, {}};
  for (int64_t i = 0; i < layout.head_dim; ++i)
    a.places.push_back(engine.tier->attention.place(i, layout.type));
  const int64_t products = plan(a, sequences, count);
  const int64_t rows = std::max(TASK_ROWS, a.group);
  const int64_t scratch = rows * (2 * layout.head_dim + 2) + ATTENTION_BLOCK * layout.head_dim;
  int64_t partials = 0;
  for (const Split &split : a.splits) partials += split.spans;
  if (!engine.inner.reserve(partials * a.partial_floats() * 4) ||
      !engine.reserve_scratch(scratch * 4))
    return HEADRACE_OUT_OF_MEMORY;
  const int phases = a.splits.empty() ? 1 : 2;
  engine.pool.run({phases,
                   {static_cast<int64_t>(a.tasks.size()), static_cast<int64_t>(a.splits.size())},
                   work,
                   &a},
                  threads_for(engine, products));
  return HEADRACE_OK;
}

}  // namespace headrace
