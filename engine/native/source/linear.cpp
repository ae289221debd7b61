// Products with one matrix, for any number of tokens.
#include <algorithm>

#include "engine.h"

namespace headrace {

namespace {

constexpr int64_t MAX_TOKEN_BLOCK = 256;
// Activations of one block of tokens, which stay in a core's second cache while rows pass by.
constexpr int64_t TOKEN_BLOCK_BYTES = 512 << 10;
constexpr int64_t ARRANGED_AT_ONCE = 8;  // tokens

struct Linear {
  Engine &engine;
  const Matrix &matrix;
  const Arrangement &arrangement;
  const void *x;
  int32_t x_type;
  int64_t tokens;
  const float *bias;
  float *y;
  int64_t tile, tiles, token_block;
  int first_phase;
};

void compute(const Linear &l, int64_t task, int thread) {
  const int64_t row = task % l.tiles * l.tile, begin = task / l.tiles * l.token_block;
  const int64_t rows = std::min(l.tile, l.matrix.rows - row);
  const int64_t tokens = std::min(l.token_block, l.tokens - begin);
  const float *x[MAX_TOKEN_BLOCK];
  float *out[MAX_TOKEN_BLOCK];
  for (int64_t t = 0; t < tokens; ++t) {
    x[t] = l.engine.activations.floats() + (begin + t) * l.arrangement.padded;
    out[t] = l.y + (begin + t) * l.matrix.rows + row;
  }
  l.arrangement.kernel->product(l.matrix, row, rows, x, tokens, out,
                                l.engine.scratch[static_cast<size_t>(thread)].floats());
  if (l.bias == nullptr) return;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t r = 0; r < rows; ++r) out[t][r] += l.bias[row + r];
}

void work(void *context, int phase, int64_t task, int thread) {
  const Linear &l = *static_cast<const Linear *>(context);
  if (phase + l.first_phase == 1) return compute(l, task, thread);
  const int64_t first = task * ARRANGED_AT_ONCE;
  l.arrangement.arrange(l.x, l.x_type, first, std::min(l.tokens, first + ARRANGED_AT_ONCE),
                        l.engine.activations.floats());
}

}  // namespace

int32_t linear(Engine &engine, const Matrix &matrix, const void *x, int32_t x_type, int64_t tokens,
               const float *bias, float *y) {
  if (tokens == 0 || matrix.rows == 0) return HEADRACE_OK;
  const Arrangement a(*engine.tier, matrix.format, matrix.columns);
  const int threads = threads_for(engine, matrix.rows * matrix.columns * tokens);
  if (!engine.activations.reserve(tokens * a.padded * 4) ||
      !engine.reserve_scratch(a.padded / a.kernel->chunk * a.kernel->scratch_bytes_per_chunk))
    return HEADRACE_OUT_OF_MEMORY;

  Linear l{engine, matrix, a, x, x_type, tokens, bias, y, 0, 0, 0, 0};
  // Several tiles a thread, so that one that is held up does not hold up the others.
  l.tile = std::clamp<int64_t>(round_up(matrix.rows / (threads * 4), 8), 8, 256);
  l.tiles = divide_up(matrix.rows, l.tile);
  l.token_block = std::clamp<int64_t>(TOKEN_BLOCK_BYTES / (a.padded * 4) / 4 * 4, 4, MAX_TOKEN_BLOCK);
  const int64_t tasks = l.tiles * divide_up(tokens, l.token_block);
  Region region{2, {divide_up(tokens, ARRANGED_AT_ONCE), tasks}, work, &l};
  if (region.tasks[0] == 1) {  // not worth a barrier
    work(&l, 0, 0, 0);
    l.first_phase = 1;
    region = {1, {tasks}, work, &l};
  }
  engine.pool.run(region, threads);
  return HEADRACE_OK;
}

}  // namespace headrace
