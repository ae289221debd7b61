// The C functions: they check what would crash, hold the lock, and let no exception out.
#include <new>

#include "engine.h"

using namespace headrace;

// Never destroyed: threads that sleep when the process ends must not wake to a destructor.
Engine &headrace::shared() {
  static Engine *const engine = [] {
    auto *made = new Engine;
    for (int i = 0; i < tier_count() && tier_usable(i); ++i) made->tier_number = i;
    made->tier = tier(made->tier_number);
    return made;
  }();
  return *engine;
}

namespace {

template <class Call>
int32_t guarded(Call call) {
  try {
    Engine &engine = shared();
    const std::lock_guard<std::mutex> lock(engine.mutex);
    return call(engine);
  } catch (const std::bad_alloc &) {
    return HEADRACE_OUT_OF_MEMORY;
  } catch (...) {
    return HEADRACE_BAD_ARGUMENT;
  }
}

bool known(int32_t x_type) { return x_type == HEADRACE_X_FLOAT32 || x_type == HEADRACE_X_BFLOAT16; }

}  // namespace

extern "C" {

int32_t headrace_abi(void) { return HEADRACE_NATIVE_ABI; }

int32_t headrace_tiers(void) { return tier_count(); }

const char *headrace_tier_name(int32_t index) { return tier_name(index); }

int32_t headrace_tier_usable(int32_t index) { return tier_usable(index) ? 1 : 0; }

int32_t headrace_tier(void) { return shared().tier_number; }

int32_t headrace_set_tier(int32_t highest) {
  return guarded([&](Engine &engine) {
    engine.tier_number = 0;
    for (int i = 0; i < tier_count() && i <= highest && tier_usable(i); ++i)
      engine.tier_number = i;
    engine.tier = tier(engine.tier_number);
    return engine.tier_number;
  });
}

int32_t headrace_set_threads(int32_t threads) {
  return guarded([&](Engine &engine) { return engine.pool.resize(threads); });
}

int32_t headrace_set_cpus(const int32_t *cpus, int32_t count, int32_t each) {
  return guarded([&](Engine &engine) {
    engine.pool.place(std::vector<int>(cpus, cpus + count), each != 0);
    return HEADRACE_OK;
  });
}

int32_t headrace_settle(void) {
  return guarded([](Engine &engine) {
    engine.pool.settle();
    return HEADRACE_OK;
  });
}

int32_t headrace_placed(void) { return shared().pool.placed(); }

int32_t headrace_products(const headrace_matrix *matrices, int32_t count, const void *x,
                          int32_t x_type, int64_t tokens, float *y) {
  return guarded([&](Engine &engine) -> int32_t {
    if (count < 1 || tokens < 0 || !known(x_type)) return HEADRACE_BAD_ARGUMENT;
    return products(engine, matrices, count, x, x_type, tokens, y);
  });
}

int32_t headrace_mlp(const headrace_matrix *matrices, int32_t activation, const void *x,
                     int32_t x_type, int64_t tokens, float *y) {
  return guarded([&](Engine &engine) -> int32_t {
    if (tokens < 0 || !known(x_type)) return HEADRACE_BAD_ARGUMENT;
    return mlp(engine, matrices, activation, x, x_type, tokens, y);
  });
}

int32_t headrace_attention(const headrace_attention_layout *layout,
                           const headrace_sequence *sequences, int64_t count, const void *q,
                           float *out) {
  return guarded([&](Engine &engine) -> int32_t {
    if (count < 0 || !known(layout->type)) return HEADRACE_BAD_ARGUMENT;
    return attention(engine, *layout, sequences, count, q, out);
  });
}

int32_t headrace_rms_norm(const float *x, const float *added, const float *weight, float eps,
                          int64_t rows, int64_t columns, float *sum, float *out) {
  return guarded([&](Engine &engine) -> int32_t {
    if (rows < 0 || columns < 1) return HEADRACE_BAD_ARGUMENT;
    return rms_norm(engine, x, added, weight, eps, rows, columns, sum, out);
  });
}

int32_t headrace_rotate_and_store(const headrace_attention_layout *layout,
                                  const headrace_rotation *rotation) {
  return guarded([&](Engine &engine) { return rotate_and_store(engine, *layout, *rotation); });
}

int32_t headrace_attention_block(const headrace_matrix *qkv, const headrace_matrix *output,
                                 const headrace_attention_layout *layout,
                                 const headrace_rotation *rotation,
                                 const headrace_sequence *sequences, int64_t count, const float *x,
                                 float *y) {
  return guarded([&](Engine &engine) -> int32_t {
    if (count < 0) return HEADRACE_BAD_ARGUMENT;
    return attention_block(engine, qkv, *output, *layout, *rotation, sequences, count, x, y);
  });
}

int32_t headrace_route(const float *router, int64_t experts, int64_t hidden, const void *x,
                       int32_t x_type, int64_t tokens, int64_t top_k, int32_t normalise,
                       int64_t *ids, float *weights) {
  return guarded([&](Engine &engine) -> int32_t {
    if (tokens < 0 || hidden < 1 || top_k < 1 || top_k > experts || !known(x_type))
      return HEADRACE_BAD_ARGUMENT;
    return route(engine, router, experts, hidden, x, x_type, tokens, top_k, normalise != 0, ids,
                 weights);
  });
}

int32_t headrace_moe_rows(const headrace_expert_layout *layout, const void *bank, int64_t blobs,
                          const void *x, int32_t x_type, int64_t tokens, int64_t routes,
                          const int64_t *slots, int32_t activation, float *rows) {
  return guarded([&](Engine &engine) -> int32_t {
    if (tokens < 0 || routes < 0 || !known(x_type)) return HEADRACE_BAD_ARGUMENT;
    return moe_rows(engine, *layout, static_cast<const uint8_t *>(bank), blobs, x, x_type, tokens,
                    routes, slots, activation, rows);
  });
}

int32_t headrace_moe_combine(const float *rows, const float *weights, int64_t tokens,
                             int64_t routes, int64_t hidden, float *out) {
  return guarded([&](Engine &engine) {
    return moe_combine(engine, rows, weights, tokens, routes, hidden, out);
  });
}

int32_t headrace_add_gated(float *out, const float *added, const float *gates, int64_t rows,
                           int64_t columns) {
  return guarded(
      [&](Engine &engine) { return add_gated(engine, out, added, gates, rows, columns); });
}

int32_t headrace_decode(int32_t format, int64_t rows, int64_t columns, const void *weight,
                        const void *scale, const void *scale_2, int64_t first, int64_t count,
                        float *out) {
  return guarded([&](Engine &engine) -> int32_t {
    Matrix matrix;
    if (!describe(static_cast<Format>(format), rows, columns, weight, scale, scale_2, matrix) ||
        first < 0 || count < 0 || first + count > rows)
      return HEADRACE_BAD_ARGUMENT;
    for (int64_t r = 0; r < count; ++r)
      engine.tier->kernels[format].decode(matrix, first + r, out + r * columns);
    return HEADRACE_OK;
  });
}

uint64_t headrace_read(const void *bytes, int64_t count) {
  struct Read {
    const Tier *tier;
    const uint8_t *bytes;
    int64_t count;
    std::atomic<uint64_t> sum{0};
  };
  constexpr int64_t PIECE = 1 << 18;
  Engine &engine = shared();
  const std::lock_guard<std::mutex> lock(engine.mutex);
  Read read{engine.tier, static_cast<const uint8_t *>(bytes), count};
  const auto work = [](void *context, int, int64_t task, int) {
    Read &r = *static_cast<Read *>(context);
    const int64_t begin = task * PIECE, left = r.count - begin;
    r.sum += r.tier->read(r.bytes + begin, left < PIECE ? left : PIECE);
  };
  engine.pool.run({1, {divide_up(count, PIECE)}, work, &read}, engine.pool.threads());
  return read.sum;
}

}  // extern "C"
