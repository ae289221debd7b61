#include "matrix.h"

#include <cstring>

namespace headrace {

namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// GGUF's blocks of so many columns and bytes, scales included.
bool blocks(Matrix &m, int64_t columns, int64_t bytes) {
  m.row_bytes = m.columns / columns * bytes;
  return m.columns % columns == 0;
}

}  // namespace

bool describe(Format format, int64_t rows, int64_t columns, const void *weight, const void *scale,
              const void *global, Matrix &m) {
  if (rows < 0 || columns < 1 || weight == nullptr) return false;
  m = {format, rows, columns, static_cast<const uint8_t *>(weight),
       static_cast<const uint8_t *>(scale), 1.0f, 0, 0};
  switch (format) {
    case Format::float32:
      m.row_bytes = columns * 4;
      return true;
    case Format::bfloat16:
    case Format::float16:
      m.row_bytes = columns * 2;
      return true;
    case Format::fp8_block:
      m.row_bytes = columns;
      m.scale_row_bytes = divide_up(columns, FP8_BLOCK) * 4;
      return scale != nullptr;
    case Format::nvfp4:
      if (columns % NVFP4_GROUP || scale == nullptr || global == nullptr) return false;
      m.row_bytes = columns / 2;
      m.scale_row_bytes = columns / NVFP4_GROUP;
      std::memcpy(&m.global, global, 4);
      return true;
    case Format::mxfp4:
      if (columns % MXFP4_GROUP || scale == nullptr) return false;
      m.row_bytes = columns / 2;
      m.scale_row_bytes = columns / MXFP4_GROUP;
      return true;
    case Format::q8_0:
      return blocks(m, 32, 34);
    case Format::q4_0:
      return blocks(m, 32, 18);
    case Format::q4_1:
      return blocks(m, 32, 20);
    case Format::q4_k:
      return blocks(m, 256, 144);
    case Format::q6_k:
      return blocks(m, 256, 210);
    default:
      return false;
  }
}

}  // namespace headrace
