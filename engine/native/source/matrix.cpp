#include "matrix.h"

#include <cstring>

namespace headrace {

namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
    default:
      return false;
  }
}

}  // namespace headrace
