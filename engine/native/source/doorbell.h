// Shared memory by which a device and a host thread hand each other one layer step at a time.
#pragma once

#include <atomic>
#include <cstdint>

#include "headrace_native.h"

namespace headrace {

// The block begins with this; slots, activations and rows follow (headrace_doorbell_shape). Each
// side writes its own cache line. Whoever waits reads `poison` after what it waited for: poison is
// written first, so that a wait that was released by it cannot be taken for an answer.
struct Doorbell {
  // The device's: descriptor and `ready` = 0 first, then the request.
  alignas(64) std::atomic<uint32_t> request{0};
  int32_t layer = 0, tokens = 0, routes = 0;
  // The host's: rows first, then the request's number, then 1 for who can only wait for a constant.
  // `spoiled` makes one word of 64 bits with `ready`, and no device takes it back: who resets
  // `ready` just when the block is poisoned must not wait for ever.
  alignas(64) std::atomic<uint32_t> response{0};
  alignas(8) std::atomic<uint32_t> ready{0};
  std::atomic<uint32_t> spoiled{0};
  // Why nothing here counts any more; 0 while it does. The first reason stays.
  alignas(64) std::atomic<uint32_t> poison{0};
  alignas(64) uint8_t reserved[64] = {};

  // Ends every wait of either side, now and later.
  void spoil(uint32_t reason);
};

static_assert(sizeof(Doorbell) == 256);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

}  // namespace headrace
