// A stored matrix as the kernels see it: base pointers and the bytes from one row to the next.
#pragma once

#include <cstdint>

namespace headrace {

// The numbers are part of the C interface.
enum class Format : int32_t {
  float32 = 0,
  bfloat16 = 1,
  float16 = 2,
  fp8_block = 3,
  nvfp4 = 4,
  mxfp4 = 5,
  q8_0 = 6,
  q4_0 = 7,
  q4_1 = 8,
  q4_k = 9,
  q6_k = 10,
  count = 11,
};

constexpr int64_t FP8_BLOCK = 128;
constexpr int64_t NVFP4_GROUP = 16;
constexpr int64_t MXFP4_GROUP = 32;

struct Matrix {
  Format format;
  int64_t rows, columns;
  const uint8_t *weight;
  const uint8_t *scale;  // NULL where the format has none
  float global;          // 1 where the format has none
  int64_t row_bytes, scale_row_bytes;
};

// Fills in the distances. False for a format or a size that there is not.
bool describe(Format format, int64_t rows, int64_t columns, const void *weight, const void *scale,
              const void *global, Matrix &matrix);

}  // namespace headrace
