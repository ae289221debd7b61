// What each instruction set provides: one table, filled by one translation unit.
#pragma once

#include <cstdint>

#include "attention.h"
#include "matrix.h"

namespace headrace {

// out[t][r] = row first + r times x[t], for r < count. Activations are float32 and lie as `places`
// says, or as the kernel's own `split` writes them; for `tiles` at equal distances; bfloat16 activations
// are widened, which is exact,
// or rounded where a tier has a kernel that does. AVX-512's instruction for pairs of bfloat16 has no
// kernel, since it starts half as often as a fused multiply-add; tiles of them have.
using Product = void (*)(const Matrix &, int64_t first, int64_t count, const float *const *x,
                         int64_t tokens, float *const *out, void *scratch);
using Decode = void (*)(const Matrix &, int64_t row, float *out);

// With more tokens a product is a prompt's: tiles may compute it, so many tokens at once.
constexpr int64_t FEW_TOKENS = 16, TILE_TOKENS = 16;

// What activations are: float32, bfloat16 that was widened, or float32 between two products of which
// the first had bfloat16.
enum class Numbers { float32, bfloat16, between, count };

struct Kernel {
  Product product = nullptr;
  Decode decode = nullptr;
  int chunk = 0;  // columns computed at once, a power of two; activations are padded with zeros
  const uint8_t *places = nullptr;  // where a chunk's columns lie in an arranged row
  bool in_order = false;            // whether that is in their own order
  // Or else: writes columns first .. first + count of a row, which has `padded` with those behind its
  // last, in a form of the kernel's own.
  void (*split)(const float *values, int64_t first, int64_t count, float *row,
                int64_t padded) = nullptr;
  bool tiles = false;  // meets TILE_TOKENS tokens at once, and reads rows to a multiple of them
  // That a column takes in an arranged row, and behind all of them for a token that comes alone.
  int64_t column_bytes = 4, alone_bytes = 0;
  int64_t scratch_bytes_per_chunk = 0;
};

struct Tier {
  Kernel kernels[static_cast<int>(Format::count)];  // by format
  // Without a product where there is none: those that round activations, for such as came as
  // bfloat16, and those for more than FEW_TOKENS tokens of such numbers.
  Kernel rounding[static_cast<int>(Format::count)];
  Kernel prompts[static_cast<int>(Numbers::count)][static_cast<int>(Format::count)];
  void (*glu)(int activation, const float *gate, const float *up, float *out, int64_t count);
  uint64_t (*read)(const uint8_t *bytes, int64_t count);
  AttentionKernel attention;

  // What multiplies so many tokens with a matrix: it follows from what is to be computed, not from
  // how it is cut into calls.
  const Kernel &kernel_for(Format format, Numbers numbers, int64_t tokens) const {
    const int at = static_cast<int>(format);
    const Kernel &many = prompts[static_cast<int>(numbers)][at], &rounds = rounding[at];
    if (tokens > FEW_TOKENS && many.product != nullptr) return many;
    if (numbers == Numbers::bfloat16 && rounds.product != nullptr) return rounds;
    return kernels[at];
  }
};

const Tier *portable_tier();
#if defined(HEADRACE_X86)
const Tier *avx2_tier();
const Tier *avx512_tier();
#if defined(HEADRACE_AMX)
const Tier *amx_tier();
#endif
#elif defined(HEADRACE_NEON)
const Tier *neon_tier();
#endif

// Tiers that are compiled in, ascending, and whether this machine can run them.
int tier_count();
const Tier *tier(int index);  // to be asked only for those that can run
const char *tier_name(int index);
bool tier_usable(int index);

}  // namespace headrace
