// For tiers that have no masked loads.
#pragma once

#include <cstdint>
#include <cstring>

#include "inline.h"

namespace headrace::HEADRACE_TIER {

// `bytes` of `size`, zeros behind; none, if `bytes` is negative.
template <int size>
HR_INLINE void copy_first(void *to, const uint8_t *from, int bytes) {
  std::memset(to, 0, size);
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes < size ? bytes : size));
}

}  // namespace headrace::HEADRACE_TIER
