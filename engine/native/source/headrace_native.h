/* The C interface of Headrace's native library. Loaded with ctypes: engine/native/library.py holds
   the same signatures. Whoever changes one of them raises the version. */
#pragma once

#include <stdint.h>

#define HEADRACE_NATIVE_ABI 5

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
  HEADRACE_POISONED = 4,
  HEADRACE_LATE = 5,
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

/* The system's numbers of CPUs for the threads, one a core: any of them, or `each` its own, where
   the first is the caller's, who is there already. No CPUs: anywhere. `placed` tells how many
   threads the system has put there so far. */
HEADRACE_EXPORT int32_t headrace_set_cpus(const int32_t *cpus, int32_t count, int32_t each);
HEADRACE_EXPORT int32_t headrace_placed(void);

/* A stored matrix [rows, columns]; parts that its format lacks are NULL. The bias may be NULL. */
typedef struct {
  int64_t rows, columns;
  const void *weight, *scale, *scale_2;
  const float *bias;
  int32_t format;
} headrace_matrix;

/* For each matrix in turn y[tokens, its rows] = x[tokens, columns] times it transposed, plus its bias.
   All have the same columns; their results lie end to end. */
HEADRACE_EXPORT int32_t headrace_products(const headrace_matrix *matrices, int32_t count,
                                          const void *x, int32_t x_type, int64_t tokens, float *y);

/* y[tokens, rows of down] = down(act(gate(x), up(x))); the matrices are gate, up, down. */
HEADRACE_EXPORT int32_t headrace_mlp(const headrace_matrix *matrices, int32_t activation,
                                     const void *x, int32_t x_type, int64_t tokens, float *y);

/* Keys and values [pages, page_tokens, kv_heads, head_dim] of `type` (HEADRACE_X_*), from the first
   number of page 0; strides count numbers. */
typedef struct {
  int64_t heads, kv_heads, head_dim;
  int64_t pages, page_tokens, page_stride, token_stride;
  void *keys, *values;
  int32_t type;
  float scale;
} headrace_attention_layout;

/* Rows start .. start + length of a batch, whose first is at position `context` of `pages`. */
typedef struct {
  int64_t start, length, context, page_count;
  const int64_t *pages;
} headrace_sequence;

/* out[tokens, heads, head_dim] = causal attention of q (of the layout's type) over the pages. Each
   sequence is computed in an order of its own. head_dim is a multiple of 32. */
HEADRACE_EXPORT int32_t headrace_attention(const headrace_attention_layout *layout,
                                           const headrace_sequence *sequences, int64_t count,
                                           const void *q, float *out);

/* out = x over the root of its mean square (plus eps), times weight, row by row. With `added` it is
   x + added that is normed and kept in `sum`; both may be NULL. */
HEADRACE_EXPORT int32_t headrace_rms_norm(const float *x, const float *added, const float *weight,
                                          float eps, int64_t rows, int64_t columns, float *sum,
                                          float *out);

/* q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim]; cosines and sines [rows, half] of
   their positions; each row's page and offset in it; where the turned q goes, which is not q. */
typedef struct {
  int64_t rows, half;
  const float *q, *k, *v, *cosines, *sines;
  const int64_t *pages, *offsets;
  float *turned;
} headrace_rotation;

/* Turns the pairs (i, i + half) of q and k by their row's angles, and writes k and v at their places.
   Keys and values are float32. */
HEADRACE_EXPORT int32_t headrace_rotate_and_store(const headrace_attention_layout *layout,
                                                  const headrace_rotation *rotation);

/* y[rows, rows of output] = output times the attention of x[rows, columns]: q, k and v (the matrices of
   qkv) are its products, turned and stored as above, then attended to as above. `rotation` need not
   say where q, k, v and the turned q lie. Keys and values are float32. */
HEADRACE_EXPORT int32_t headrace_attention_block(const headrace_matrix *qkv,
                                                 const headrace_matrix *output,
                                                 const headrace_attention_layout *layout,
                                                 const headrace_rotation *rotation,
                                                 const headrace_sequence *sequences, int64_t count,
                                                 const float *x, float *y);

/* Logits of x [tokens, hidden] with router [experts, hidden]; for each token the ids of its top_k
   largest, the largest first and of equal ones the lowest, where one that is no number counts as the
   largest; and their shares of the softmax over all experts, or with `normalise` over these. */
HEADRACE_EXPORT int32_t headrace_route(const float *router, int64_t experts, int64_t hidden,
                                       const void *x, int32_t x_type, int64_t tokens, int64_t top_k,
                                       int32_t normalise, int64_t *ids, float *weights);

/* rows[t, j, hidden] = down(act(gate(x[t]), up(x[t]))) of blob slots[t, j], each product plus its
   bias; a negative slot leaves its row as it is.

   A thread that another program keeps from its core may still read the bank when the call has
   returned, for some milliseconds, though nothing else that it was given: before a bank is freed or
   written to, headrace_settle has to return, or a later call with HEADRACE_OK. HEADRACE_LATE: done as
   well, but when the call began threads may have been in earlier ones. */
HEADRACE_EXPORT int32_t headrace_moe_rows(const headrace_expert_layout *layout, const void *bank,
                                          int64_t blobs, const void *x, int32_t x_type,
                                          int64_t tokens, int64_t routes, const int64_t *slots,
                                          int32_t activation, float *rows);

/* Returns when no thread reads any bank of earlier calls. */
HEADRACE_EXPORT int32_t headrace_settle(void);

/* out[t] = sum over j of weights[t, j] * rows[t, j], in the order of j, each operation rounded. */
HEADRACE_EXPORT int32_t headrace_moe_combine(const float *rows, const float *weights,
                                             int64_t tokens, int64_t routes, int64_t hidden,
                                             float *out);

/* out[r] += added[r] times the logistic function of gates[r] (1, if gates are NULL). */
HEADRACE_EXPORT int32_t headrace_add_gated(float *out, const float *added, const float *gates,
                                           int64_t rows, int64_t columns);

/* Rows first .. first + count of a stored matrix as float32: what the products multiply with. */
HEADRACE_EXPORT int32_t headrace_decode(int32_t format, int64_t rows, int64_t columns,
                                        const void *weight, const void *scale,
                                        const void *scale_2, int64_t first, int64_t count,
                                        float *out);

/* Reads every byte once, with all threads, and returns a sum: the rate that products aim for. */
HEADRACE_EXPORT uint64_t headrace_read(const void *bytes, int64_t count);

/* The CPU's branch of a layer step. A device and a coordinator thread share a block of memory that
   both see at once (page-locked, if the device is a GPU): a header, and behind it

     slots [tokens, routes] int64     which blob of the layer's bank, negative: not the CPU's
     x [tokens, hidden]               activations
     rows [tokens, routes, hidden]    float32, the answer; rows without a slot stay as they are

   with the step's own tokens and routes as strides. The device writes slots, x and the header's
   layer, tokens, routes, sets `ready` to 0 and then `request` to its last value plus one (never 0),
   with release order at the system's scope. The coordinator computes the rows and sets `response`
   to that number and `ready` to 1. The device waits until READY, as 64 bits, has one of the bits
   HEADRACE_DOORBELL_OVER (the upper one is poison's, for good), then reads `poison`: not 0 means
   that the answer does not count, and no later one will. A step without a slot is not rung for.
   The device does not touch the block between request and response. */
enum {
  HEADRACE_DOORBELL_REQUEST = 0,
  HEADRACE_DOORBELL_LAYER = 4,
  HEADRACE_DOORBELL_TOKENS = 8,
  HEADRACE_DOORBELL_ROUTES = 12,
  HEADRACE_DOORBELL_RESPONSE = 64,
  HEADRACE_DOORBELL_READY = 72,
  HEADRACE_DOORBELL_POISON = 128,
};
#define HEADRACE_DOORBELL_OVER UINT64_C(0x100000001)

/* Reasons of poison. The last ones are REFUSED plus a result from above. */
enum {
  HEADRACE_POISON_LATE_ANSWER = 1,    /* the coordinator had a request and did not answer */
  HEADRACE_POISON_LATE_STEP = 2,      /* a step was begun and did not end */
  HEADRACE_POISON_DEVICE_GAVE_UP = 3, /* the device's own wait took too long */
  HEADRACE_POISON_CLOSED = 4,         /* the coordinator is gone */
  HEADRACE_POISON_REFUSED = 16,
};

/* The largest step that a block holds; `layout` fills in, in bytes, where its parts lie and how
   large it is. A block begins on a 64-byte boundary. */
typedef struct {
  int64_t tokens, routes, hidden;
  int64_t slots, x, rows, bytes;
  int32_t x_type;
} headrace_doorbell_shape;

typedef struct {
  headrace_expert_layout experts;
  const void *bank;
  int64_t blobs;
  int32_t activation;
} headrace_layer;

typedef struct headrace_coordinator headrace_coordinator;

HEADRACE_EXPORT int32_t headrace_doorbell_layout(headrace_doorbell_shape *shape);

/* Writes a header into the block and starts a coordinator for it. Layers, numbered from 0, and their
   banks stay in place until it is closed. `answer_ns`: a request that takes longer poisons the
   block. `cpu`: where the coordinator runs, -1 for anywhere. */
HEADRACE_EXPORT int32_t headrace_coordinator_open(const headrace_layer *layers, int32_t count,
                                                  const headrace_doorbell_shape *shape,
                                                  void *block, int64_t answer_ns, int32_t cpu,
                                                  headrace_coordinator **opened);

/* Around each step (a graph's replay, say): the coordinator and the pool stay awake, and if the
   step has not ended after so long, the block is poisoned. */
HEADRACE_EXPORT void headrace_coordinator_begin(headrace_coordinator *coordinator, int64_t step_ns);
HEADRACE_EXPORT void headrace_coordinator_end(headrace_coordinator *coordinator);

/* Requests answered so far, and the time that computing them took. */
HEADRACE_EXPORT uint64_t headrace_coordinator_answers(const headrace_coordinator *coordinator);
HEADRACE_EXPORT uint64_t headrace_coordinator_busy_ns(const headrace_coordinator *coordinator);

/* Finishes the request in hand, poisons the block, so that nobody waits for it any more, settles, and
   frees the coordinator. HEADRACE_LATE if that took longer than `patience_ns`: then the coordinator is
   never freed, and block, layers and banks must stay for as long as the process. */
HEADRACE_EXPORT int32_t headrace_coordinator_close(headrace_coordinator *coordinator,
                                                   int64_t patience_ns);

/* The device's side, for devices that are CPUs. `ring` gives the number to wait for, 0 if there was
   nothing to ring for. */
HEADRACE_EXPORT int32_t headrace_doorbell_ring(void *block, int32_t layer, int32_t tokens,
                                               int32_t routes, uint32_t *ticket);
HEADRACE_EXPORT int32_t headrace_doorbell_wait(void *block, uint32_t ticket, int64_t nanoseconds);
HEADRACE_EXPORT uint32_t headrace_doorbell_poison(const void *block);

#ifdef __cplusplus
}
#endif
