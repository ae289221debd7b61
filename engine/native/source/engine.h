// What one call needs: the tier in use, the threads, and memory that is kept from call to call.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "headrace_native.h"
#include "pool.h"
#include "tier.h"

namespace headrace {

constexpr int64_t VECTOR_BYTES = 64;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// Memory on a 64-byte boundary that only grows. Contents are lost when it does.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer &&other) noexcept;
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

  bool reserve(int64_t bytes);  // false: there is no such memory
  int64_t size() const { return size_; }
  float *floats() const { return reinterpret_cast<float *>(data_); }

 private:
  uint8_t *data_ = nullptr;
  int64_t size_ = 0;
};

struct KeptStep;

struct Engine {
  std::mutex mutex;  // held during a call
  Pool pool;
  const Tier *tier = nullptr;
  int tier_number = 0;
  Buffer activations, inner, logits, qkv;
  std::vector<Buffer> scratch;  // one a thread
  std::vector<std::shared_ptr<KeptStep>> steps;  // of experts; late threads may be in all but one

  bool reserve_scratch(int64_t bytes);
};

// The one that the C functions use.
Engine &shared();

// Activations [tokens, columns] as a kernel wants them.
struct Arrangement {
  const Kernel *kernel;
  int64_t columns, padded;
  int64_t size;  // floats that a row takes

  // Of so many tokens for a product.
  Arrangement(const Tier &tier, Format format, int64_t columns, Numbers numbers, int64_t tokens);
  void arrange(const void *x, int32_t x_type, int64_t first, int64_t last, float *out) const;
  // Columns first .. first + count of an arranged row.
  void put(const float *values, int64_t first, int64_t count, float *row) const;
  // Zeros behind a row's last column.
  void pad(float *row) const;
  int64_t column_bytes() const { return kernel->column_bytes + kernel->alone_bytes; }
  // Floats of the arrangement of so many tokens, those that tiles read behind the last included.
  int64_t floats(int64_t tokens) const { return round_up(tokens, TILE_TOKENS) * size; }
  int64_t scratch_bytes() const { return padded / kernel->chunk * kernel->scratch_bytes_per_chunk; }
};

// What a call's activations are, and what they are between its products.
inline Numbers numbers_of(int32_t x_type) {
  return x_type == HEADRACE_X_BFLOAT16 ? Numbers::bfloat16 : Numbers::float32;
}
inline Numbers between_numbers_of(int32_t x_type) {
  return x_type == HEADRACE_X_BFLOAT16 ? Numbers::between : Numbers::float32;
}

int32_t products(Engine &engine, const headrace_matrix *matrices, int32_t count, const void *x,
                 int32_t x_type, int64_t tokens, float *y);

int32_t mlp(Engine &engine, const headrace_matrix *matrices, int32_t activation, const void *x,
            int32_t x_type, int64_t tokens, float *y);

int32_t attention(Engine &engine, const headrace_attention_layout &layout,
                  const headrace_sequence *sequences, int64_t count, const void *q, float *out);

int32_t rms_norm(Engine &engine, const float *x, const float *added, const float *weight, float eps,
                 int64_t rows, int64_t columns, float *sum, float *out);

int32_t rotate_and_store(Engine &engine, const headrace_attention_layout &layout,
                         const headrace_rotation &rotation);

int32_t attention_block(Engine &engine, const headrace_matrix *qkv, const headrace_matrix &output,
                        const headrace_attention_layout &layout, const headrace_rotation &rotation,
                        const headrace_sequence *sequences, int64_t count, const float *x,
                        float *y);

// HEADRACE_LATE: done, and threads may still be in earlier steps.
int32_t moe_rows(Engine &engine, const headrace_expert_layout &layout, const uint8_t *bank,
                 int64_t blobs, const void *x, int32_t x_type, int64_t tokens, int64_t routes,
                 const int64_t *slots, int32_t activation, float *rows);

int32_t route(Engine &engine, const float *router, int64_t experts, int64_t hidden, const void *x,
              int32_t x_type, int64_t tokens, int64_t top_k, bool normalise, int64_t *ids,
              float *weights);

int32_t moe_combine(Engine &engine, const float *rows, const float *weights, int64_t tokens,
                    int64_t routes, int64_t hidden, float *out);

int32_t add_gated(Engine &engine, float *out, const float *added, const float *gates, int64_t rows,
                  int64_t columns);

// How many threads so many multiplications are worth: waking one takes about as long as another
// needs for this many.
inline int threads_for(const Engine &engine, int64_t products) {
  constexpr int64_t WORTH = 1 << 17;
  const int64_t worth = products / WORTH;
  return worth < engine.pool.threads() ? static_cast<int>(worth < 1 ? 1 : worth)
                                       : engine.pool.threads();
}

}  // namespace headrace
