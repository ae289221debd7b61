// Attention with the products around it: one call, so that threads do not fall asleep in between.
#include "engine.h"

namespace headrace {

int32_t attention_block(Engine &engine, const headrace_matrix *qkv, const headrace_matrix &output,
                        const headrace_attention_layout &layout, const headrace_rotation &rotation,
                        const headrace_sequence *sequences, int64_t count, const float *x,
                        float *y) {
  const int64_t q_size = layout.heads * layout.head_dim, size = layout.kv_heads * layout.head_dim;
  const int64_t rows = rotation.rows;
  if (rows < 0 || qkv[0].rows != q_size || qkv[1].rows != size || qkv[2].rows != size ||
      output.columns != q_size)
    return HEADRACE_BAD_ARGUMENT;
  for (int64_t i = 0; i < count; ++i)
    if (sequences[i].start < 0 || sequences[i].start + sequences[i].length > rows)
      return HEADRACE_BAD_ARGUMENT;
  if (!engine.qkv.reserve(rows * 2 * (q_size + size) * 4)) return HEADRACE_OUT_OF_MEMORY;
  float *q = engine.qkv.floats(), *k = q + rows * q_size, *v = k + rows * size;
  headrace_rotation turning = rotation;
  turning.q = q;
  turning.k = k;
  turning.v = v;
  turning.turned = v + rows * size;
  int32_t status = products(engine, qkv, 3, x, HEADRACE_X_FLOAT32, rows, q);
  if (status == HEADRACE_OK) status = rotate_and_store(engine, layout, turning);
  if (status == HEADRACE_OK)
    status = attention(engine, layout, sequences, count, turning.turned, q);
  if (status == HEADRACE_OK)
    status = products(engine, &output, 1, q, HEADRACE_X_FLOAT32, rows, y);
  return status;
}

}  // namespace headrace
