// Products with stored matrices, for any number of tokens, and two layers of them with an activation
// between.
#include <algorithm>
#include <vector>

#include "engine.h"

namespace headrace {

namespace {

constexpr int64_t MAX_TOKEN_BLOCK = 256;
constexpr int64_t MIN_TOKEN_BLOCK = 32;
// Activations of one block of tokens, which stay in a core's second cache while rows pass by.
constexpr int64_t TOKEN_BLOCK_BYTES = 512 << 10;
// With tiles rows are decoded anew for each block, which is most of the work.
constexpr int64_t TILED_TOKEN_BLOCK_BYTES = 2048 << 10;
constexpr int64_t ARRANGED_AT_ONCE = 8;  // tokens

// One matrix times all tokens, cut into tiles of rows and blocks of tokens.
struct Multiplication {
  Matrix matrix;
  Arrangement arrangement;
  const float *bias;
  const float *x;  // arranged
  float *y;
  int64_t tile, tiles, token_block, tasks;

  Multiplication(const Engine &engine, const Matrix &m, const float *added, Numbers numbers,
                 int64_t tokens, int threads)
      : matrix(m),
        arrangement(*engine.tier, m.format, m.columns, numbers, tokens),
        bias(added),
        x(nullptr),
        y(nullptr),
        // Several tiles a thread, so that one that is held up does not hold up the others.
        tile(tile_rows(m.rows / (threads * 4), tokens > FEW_TOKENS ? 32 : 8)),
        tiles(divide_up(m.rows, tile)),
        token_block(block_tokens(
            arrangement.kernel->tiles ? TILED_TOKEN_BLOCK_BYTES : TOKEN_BLOCK_BYTES,
            arrangement.padded * 4)),
        tasks(tiles * divide_up(tokens, token_block)) {}

  static int64_t tile_rows(int64_t wanted, int64_t unit) {
    return std::clamp<int64_t>(round_up(wanted, unit), unit, 256);
  }
  static int64_t block_tokens(int64_t bytes, int64_t token_bytes) {
    return std::clamp<int64_t>(bytes / token_bytes / MIN_TOKEN_BLOCK * MIN_TOKEN_BLOCK,
                               MIN_TOKEN_BLOCK, MAX_TOKEN_BLOCK);
  }
  bool arranged_as(const Multiplication &other) const {
    return arrangement.kernel == other.arrangement.kernel;
  }
};

struct Tile {
  int64_t row, rows, first, tokens;
};

Tile tile_of(const Multiplication &p, int64_t task, int64_t tokens) {
  const int64_t row = task % p.tiles * p.tile, first = task / p.tiles * p.token_block;
  return {row, std::min(p.tile, p.matrix.rows - row), first,
          std::min(p.token_block, tokens - first)};
}

// Token t of the tile goes to y + t * stride.
void multiply(const Engine &engine, const Multiplication &p, const Tile &tile, float *y, int64_t stride,
              int thread) {
  const float *x[MAX_TOKEN_BLOCK];
  float *out[MAX_TOKEN_BLOCK];
  for (int64_t t = 0; t < tile.tokens; ++t) {
    x[t] = p.x + (tile.first + t) * p.arrangement.size;
    out[t] = y + t * stride;
  }
  p.arrangement.kernel->product(p.matrix, tile.row, tile.rows, x, tile.tokens, out,
            engine.scratch[static_cast<size_t>(thread)].floats());
  if (p.bias == nullptr) return;
  for (int64_t t = 0; t < tile.tokens; ++t)
    for (int64_t r = 0; r < tile.rows; ++r) out[t][r] += p.bias[tile.row + r];
}

void multiply(const Engine &engine, const Multiplication &p, int64_t task, int64_t tokens, int thread) {
  const Tile tile = tile_of(p, task, tokens);
  multiply(engine, p, tile, p.y + tile.first * p.matrix.rows + tile.row, p.matrix.rows, thread);
}

struct Input {
  const void *x;
  int32_t type;
  int64_t tokens;

  int64_t tasks() const { return divide_up(tokens, ARRANGED_AT_ONCE); }
  void arrange(const Arrangement &a, int64_t task, float *out) const {
    const int64_t first = task * ARRANGED_AT_ONCE;
    a.arrange(x, type, first, std::min(tokens, first + ARRANGED_AT_ONCE), out);
  }
};

bool described(const headrace_matrix &m, Matrix &matrix) {
  return describe(static_cast<Format>(m.format), m.rows, m.columns, m.weight, m.scale, m.scale_2,
                  matrix);
}

// --- several matrices side by side ---------------------------------------------------------------

struct Products {
  Engine &engine;
  const Input &input;
  std::vector<Multiplication> all;
  std::vector<const Multiplication *> arranged;  // those whose arrangement no earlier one has
  std::vector<float *> places;            // and where it lies
};

void work(void *context, int phase, int64_t task, int thread) {
  const Products &c = *static_cast<const Products *>(context);
  if (phase == 0) {
    const size_t which = static_cast<size_t>(task / c.input.tasks());
    return c.input.arrange(c.arranged[which]->arrangement, task % c.input.tasks(),
                           c.places[which]);
  }
  for (const Multiplication &p : c.all) {
    if (task < p.tasks) return multiply(c.engine, p, task, c.input.tokens, thread);
    task -= p.tasks;
  }
}

}  // namespace

int32_t products(Engine &engine, const headrace_matrix *matrices, int32_t count, const void *x,
                 int32_t x_type, int64_t tokens, float *y) {
  const Input input{x, x_type, tokens};
  Products c{engine, input, {}, {}, {}};
  int64_t rows = 0, tasks = 0, scratch = 0, floats = 0;
  for (int32_t i = 0; i < count; ++i) rows += matrices[i].rows;
  const int threads = threads_for(engine, rows * matrices[0].columns * tokens);
  c.all.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    Matrix matrix;
    if (!described(matrices[i], matrix) || matrix.columns != matrices[0].columns)
      return HEADRACE_BAD_ARGUMENT;
    if (matrix.rows == 0 || tokens == 0) continue;
    Multiplication &p = c.all.emplace_back(engine, matrix, matrices[i].bias, numbers_of(x_type),
                                           tokens, threads);
    p.y = y;
    y += tokens * matrix.rows;
    tasks += p.tasks;
    scratch = std::max(scratch, p.arrangement.scratch_bytes());
    const auto same = [&](const Multiplication *other) { return other->arranged_as(p); };
    if (std::none_of(c.arranged.begin(), c.arranged.end(), same)) {
      c.arranged.push_back(&p);
      floats += p.arrangement.floats(tokens);
    }
  }
  if (c.all.empty()) return HEADRACE_OK;
  if (!engine.activations.reserve(floats * 4) || !engine.reserve_scratch(scratch))
    return HEADRACE_OUT_OF_MEMORY;
  float *place = engine.activations.floats();
  for (const Multiplication *arranged : c.arranged) {
    c.places.push_back(place);
    for (Multiplication &p : c.all)
      if (p.x == nullptr && p.arranged_as(*arranged)) p.x = place;
    place += arranged->arrangement.floats(tokens);
  }
  const int64_t arrangements = static_cast<int64_t>(c.arranged.size());
  engine.pool.run({2, {arrangements * input.tasks(), tasks}, work, &c}, threads);
  return HEADRACE_OK;
}

// --- gate and up, their activation, down ---------------------------------------------------------

namespace {

struct Mlp {
  Engine &engine;
  const Input &input;
  const Multiplication &gate, &up, &down;
  int32_t activation;
  int64_t scratch;  // floats of the kernels' own
};

void gate_and_up(const Mlp &m, int64_t task, int thread) {
  const Tile tile = tile_of(m.gate, task, m.input.tokens);
  float *gates = m.engine.scratch[static_cast<size_t>(thread)].floats() + m.scratch;
  float *ups = gates + tile.tokens * tile.rows;
  multiply(m.engine, m.gate, tile, gates, tile.rows, thread);
  multiply(m.engine, m.up, tile, ups, tile.rows, thread);
  m.engine.tier->glu(m.activation, gates, ups, gates, tile.tokens * tile.rows);
  const Arrangement &a = m.down.arrangement;
  for (int64_t t = 0; t < tile.tokens; ++t) {
    float *inner = m.engine.inner.floats() + (tile.first + t) * a.size;
    a.put(gates + t * tile.rows, tile.row, tile.rows, inner);
  }
}

void mlp_work(void *context, int phase, int64_t task, int thread) {
  const Mlp &m = *static_cast<const Mlp *>(context);
  if (phase == 1) return gate_and_up(m, task, thread);
  if (phase == 2) return multiply(m.engine, m.down, task, m.input.tokens, thread);
  m.input.arrange(m.gate.arrangement, task, m.engine.activations.floats());
}

}  // namespace

int32_t mlp(Engine &engine, const headrace_matrix *matrices, int32_t activation, const void *x,
            int32_t x_type, int64_t tokens, float *y) {
  Matrix gate_matrix, up_matrix, down_matrix;
  if (!described(matrices[0], gate_matrix) || !described(matrices[1], up_matrix) ||
      !described(matrices[2], down_matrix) || gate_matrix.format != up_matrix.format ||
      gate_matrix.rows != up_matrix.rows || gate_matrix.columns != up_matrix.columns ||
      gate_matrix.rows != down_matrix.columns || gate_matrix.rows < 1 || down_matrix.rows < 1 ||
      activation < 0 || activation > HEADRACE_CLAMPED_SWIGLU)
    return HEADRACE_BAD_ARGUMENT;
  if (tokens == 0) return HEADRACE_OK;
  const int threads = threads_for(
      engine, (2 * gate_matrix.columns + down_matrix.rows) * gate_matrix.rows * tokens);
  const Numbers outer = numbers_of(x_type), inner = between_numbers_of(x_type);
  Multiplication gate(engine, gate_matrix, matrices[0].bias, outer, tokens, threads);
  Multiplication up(engine, up_matrix, matrices[1].bias, outer, tokens, threads);
  Multiplication down(engine, down_matrix, matrices[2].bias, inner, tokens, threads);
  const int64_t scratch = 
      std::max(gate.arrangement.scratch_bytes(), down.arrangement.scratch_bytes());
  const int64_t halves = 2 * std::min(gate.token_block, tokens) * gate.tile;
  if (!engine.activations.reserve(gate.arrangement.floats(tokens) * 4) ||
      !engine.inner.reserve(down.arrangement.floats(tokens) * 4) ||
      !engine.reserve_scratch(scratch + halves * 4))
    return HEADRACE_OUT_OF_MEMORY;
  gate.x = up.x = engine.activations.floats();
  down.x = engine.inner.floats();
  down.y = y;
  for (int64_t t = 0; t < tokens; ++t)
    down.arrangement.pad(engine.inner.floats() + t * down.arrangement.size);
  const Input input{x, x_type, tokens};
  Mlp m{engine, input, gate, up, down, activation, scratch / 4};
  engine.pool.run({3, {input.tasks(), gate.tasks, down.tasks}, mlp_work, &m}, threads);
  return HEADRACE_OK;
}

}  // namespace headrace
