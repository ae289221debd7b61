// What each instruction set provides: one table, filled by one translation unit.
#pragma once

#include <cstdint>

#include "attention.h"
#include "matrix.h"

namespace headrace {

// out[t][r] = row first + r times x[t], for r < count. Activations are float32 and lie as `place`
// says. There is no kernel for 16-bit activations, since AVX-512's instruction for pairs of bfloat16
// gains nothing: looking codes up as 16-bit words takes two operations, and the instruction starts
// half as often as a fused multiply-add. bfloat16 activations are widened, which is exact.
using Product = void (*)(const Matrix &, int64_t first, int64_t count, const float *const *x,
                         int64_t tokens, float *const *out, void *scratch);
using Decode = void (*)(const Matrix &, int64_t row, float *out);

struct Kernel {
  Product product = nullptr;
  Decode decode = nullptr;
  int chunk = 0;  // columns that are computed at once; activations are padded to it with zeros
  int lane = 0;   // neighbouring columns that one lane takes
  int64_t scratch_bytes_per_chunk = 0;
};

struct Tier {
  const char *name;
  int width;  // float32 lanes
  Kernel kernels[static_cast<int>(Format::count)];  // by format
  void (*glu)(int activation, const float *gate, const float *up, float *out, int64_t count);
  uint64_t (*read)(const uint8_t *bytes, int64_t count);
  AttentionKernel attention;
};

const Tier *portable_tier();
#if defined(HEADRACE_X86)
const Tier *avx2_tier();
const Tier *avx512_tier();
#endif

// Tiers that are compiled in, ascending, and whether this machine can run them.
int tier_count();
const Tier *tier(int index);
bool tier_usable(int index);

// Where column `i` of an activation lies in its arranged row, in elements.
inline int64_t place(int64_t i, int width, int lane) {
  const int64_t block = static_cast<int64_t>(width) * lane, within = i % block;
  return i - within + within % lane * width + within / lane;
}

}  // namespace headrace
