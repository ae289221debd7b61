/* The C interface of Headrace's native library. Loaded with ctypes: engine/native/library.py holds
   the same signatures. Whoever changes one of them raises the version. */
#pragma once

#include <stdint.h>

#define HEADRACE_NATIVE_ABI 2

#if defined(_WIN32)
#define HEADRACE_EXPORT __declspec(dllexport)
#else
#define HEADRACE_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Results of the functions that compute. */
enum {
  HEADRACE_OK = 0,
  HEADRACE_BAD_ARGUMENT = 1,
  HEADRACE_BAD_SLOT = 2,
  HEADRACE_OUT_OF_MEMORY = 3,
};

/* Types of activations and biases. */
enum { HEADRACE_X_FLOAT32 = 0, HEADRACE_X_BFLOAT16 = 1 };

/* What joins gate and up. */
enum { HEADRACE_SILU_GLU = 0, HEADRACE_GELU_TANH_GLU = 1, HEADRACE_CLAMPED_SWIGLU = 2 };

/* Where the parts of an expert lie in its blob, in bytes from its begin; -1 for a part that the
   format does not have and for a bias that there is not. gate and up are one part: gate's rows,
   then up's. */
typedef struct {
  int64_t hidden, intermediate, stride;
  int64_t gate_up_weight, gate_up_scale, gate_up_scale_2;
  int64_t down_weight, down_scale, down_scale_2;
  int64_t gate_up_bias, down_bias;
  int32_t gate_up_format, down_format;
  int32_t bias_type;
} headrace_expert_layout;

HEADRACE_EXPORT int32_t headrace_abi(void);

/* Instruction sets, ascending: how many are compiled in, a name (NULL beyond), 1 if this machine
   can run it, the one in use. `set` takes the best that is not above `highest`. */
HEADRACE_EXPORT int32_t headrace_tiers(void);
HEADRACE_EXPORT const char *headrace_tier_name(int32_t tier);
HEADRACE_EXPORT int32_t headrace_tier_usable(int32_t tier);
HEADRACE_EXPORT int32_t headrace_tier(void);
HEADRACE_EXPORT int32_t headrace_set_tier(int32_t highest);

/* The caller's own thread counts as one. Returns the number there is. */
HEADRACE_EXPORT int32_t headrace_set_threads(int32_t threads);

/* y[tokens, rows] = x[tokens, columns] times the stored matrix transposed, plus bias (or NULL). */
HEADRACE_EXPORT int32_t headrace_linear(int32_t format, int64_t rows, int64_t columns,
                                        const void *weight, const void *scale,
                                        const void *scale_2, const void *x, int32_t x_type,
                                        int64_t tokens, const float *bias, float *y);

/* rows[t, j, hidden] = down(act(gate(x[t]), up(x[t]))) of blob slots[t, j], each product plus its
   bias; a negative slot leaves its row as it is. */
HEADRACE_EXPORT int32_t headrace_moe_rows(const headrace_expert_layout *layout, const void *bank,
                                          int64_t blobs, const void *x, int32_t x_type,
                                          int64_t tokens, int64_t routes, const int64_t *slots,
                                          int32_t activation, float *rows);

/* out[t] = sum over j of weights[t, j] * rows[t, j], in the order of j, each operation rounded. */
HEADRACE_EXPORT int32_t headrace_moe_combine(const float *rows, const float *weights,
                                             int64_t tokens, int64_t routes, int64_t hidden,
                                             float *out);

/* Rows first .. first + count of a stored matrix as float32: what the products multiply with. */
HEADRACE_EXPORT int32_t headrace_decode(int32_t format, int64_t rows, int64_t columns,
                                        const void *weight, const void *scale,
                                        const void *scale_2, int64_t first, int64_t count,
                                        float *out);

/* Reads every byte once, with all threads, and returns a sum: the rate that products aim for. */
HEADRACE_EXPORT uint64_t headrace_read(const void *bytes, int64_t count);

#ifdef __cplusplus
}
#endif
