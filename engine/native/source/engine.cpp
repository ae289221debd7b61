#include "engine.h"

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
  scratch.resize(static_cast<size_t>(pool.threads()));
  for (Buffer &buffer : scratch)
    if (!buffer.reserve(bytes)) return false;
  return true;
}

Arrangement::Arrangement(const Tier &tier, Format format, int64_t all_columns)
    : kernel(&tier.kernels[static_cast<int>(format)]),
      columns(all_columns),
      padded(round_up(all_columns, kernel->chunk)) {}

namespace {

float widened(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
float widened(float value) { return value; }

// Chunk by chunk; columns beyond the last are zero.
template <class Source>
void arrange_row(const Source *x, const Arrangement &a, float *out) {
  const int64_t chunk = a.kernel->chunk;
  const uint8_t *places = a.kernel->places;
  for (int64_t begin = 0; begin < a.padded; begin += chunk) {
    const int64_t valid = a.columns - begin < chunk ? a.columns - begin : chunk;
    for (int64_t i = 0; i < valid; ++i) out[begin + places[i]] = widened(x[begin + i]);
    for (int64_t i = valid; i < chunk; ++i) out[begin + places[i]] = 0.0f;
  }
}

}  // namespace

void Arrangement::arrange(const void *x, int32_t x_type, int64_t first, int64_t last,
                          float *out) const {
  for (int64_t t = first; t < last; ++t) {
    if (x_type == HEADRACE_X_FLOAT32)
      arrange_row(static_cast<const float *>(x) + t * columns, *this, out + t * padded);
    else
      arrange_row(static_cast<const uint16_t *>(x) + t * columns, *this, out + t * padded);
  }
}

}  // namespace headrace
