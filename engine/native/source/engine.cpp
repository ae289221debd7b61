#include "engine.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace headrace {

Buffer::~Buffer() { ::operator delete(data_, std::align_val_t{VECTOR_BYTES}); }

Buffer::Buffer(Buffer &&other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

bool Buffer::reserve(int64_t bytes) {
  if (bytes <= size_) return true;
  ::operator delete(data_, std::align_val_t{VECTOR_BYTES});
  size_ = 0;
  data_ = static_cast<uint8_t *>(::operator new(
      static_cast<size_t>(bytes), std::align_val_t{VECTOR_BYTES}, std::nothrow));
  if (data_ == nullptr) return false;
  size_ = bytes;
  return true;
}

bool Engine::reserve_scratch(int64_t bytes) {
  const size_t threads = static_cast<size_t>(pool.threads());
  const auto suffices = [bytes](const Buffer &buffer) { return buffer.size() >= bytes; };
  if (scratch.size() == threads && std::all_of(scratch.begin(), scratch.end(), suffices))
    return true;
  pool.settle();  // late threads use theirs
  scratch.resize(threads);
  for (Buffer &buffer : scratch)
    if (!buffer.reserve(bytes)) return false;
  return true;
}

Arrangement::Arrangement(const Tier &tier, Format format, int64_t all_columns, Numbers numbers,
                         int64_t tokens)
    : kernel(&tier.kernel_for(format, numbers, tokens)),
      columns(all_columns),
      padded(round_up(all_columns, kernel->chunk)),
      // In a form of its own an odd number of lines, so that rows lie in different sets of a cache.
      size(kernel->split == nullptr ? padded : (padded * column_bytes() / 64 | 1) * 16) {}

void Arrangement::put(const float *values, int64_t first, int64_t count, float *row) const {
  if (kernel->split != nullptr) return kernel->split(values, first, count, row, padded);
  if (kernel->in_order) {
    std::memcpy(row + first, values, static_cast<size_t>(count) * 4);
    return;
  }
  for (int64_t i = first; i < first + count; ++i) {
    const int64_t within = i & (kernel->chunk - 1);
    row[i - within + kernel->places[within]] = values[i - first];
  }
}

void Arrangement::pad(float *row) const {
  static constexpr float zeros[256] = {};
  if (padded != columns) put(zeros, columns, padded - columns, row);
}

void Arrangement::arrange(const void *x, int32_t x_type, int64_t first, int64_t last,
                          float *out) const {
  for (int64_t t = first; t < last; ++t) {
    float *row = out + t * size;
    pad(row);
    if (x_type == HEADRACE_X_FLOAT32) {
      put(static_cast<const float *>(x) + t * columns, 0, columns, row);
      continue;
    }
    const uint16_t *halves = static_cast<const uint16_t *>(x) + t * columns;
    for (int64_t begin = 0; begin < columns; begin += kernel->chunk) {
      float wide[256];
      const int64_t count = std::min<int64_t>(kernel->chunk, columns - begin);
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = static_cast<uint32_t>(halves[begin + i]) << 16;
        std::memcpy(wide + i, &bits, 4);
      }
      put(wide, begin, count, row);
    }
  }
}

}  // namespace headrace
