// What formats have in common whose rows are codes alone: scales, if there are any, lie among them.
#pragma once

namespace headrace::HEADRACE_TIER {

template <int columns, int bytes, int sums, bool by_scales>
struct Codes {
  struct Row {
    const uint8_t *codes;
  };
  static constexpr bool scaled = by_scales, global = false;
  static constexpr int chunk = columns, parts = chunk / W, shares = sums;
  static constexpr int code_bytes = bytes, scale_bytes = 0;
  static HR_INLINE Row row(const Matrix &m, int64_t r) { return {m.weight + r * m.row_bytes}; }
};

}  // namespace headrace::HEADRACE_TIER
