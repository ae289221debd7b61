// The shape of the block, and the device's side of it for devices that are CPUs.
#include "doorbell.h"

#include <algorithm>

#include "engine.h"
#include "event.h"

using namespace headrace;

namespace headrace {

void Doorbell::spoil(uint32_t reason) {
  uint32_t none = 0;
  poison.compare_exchange_strong(none, reason, std::memory_order_acq_rel);
  spoiled.store(1, std::memory_order_release);
  response.store(request.load(std::memory_order_acquire), std::memory_order_release);
  ready.store(1, std::memory_order_release);
}

}  // namespace headrace

extern "C" {

int32_t headrace_doorbell_layout(headrace_doorbell_shape *shape) {
  const int64_t tokens = shape->tokens, routes = shape->routes, hidden = shape->hidden;
  constexpr int64_t MOST = int64_t{1} << 20;
  if (tokens < 1 || routes < 1 || hidden < 1 || tokens > MOST || routes > MOST || hidden > MOST)
    return HEADRACE_BAD_ARGUMENT;
  if (shape->x_type != HEADRACE_X_FLOAT32 && shape->x_type != HEADRACE_X_BFLOAT16)
    return HEADRACE_BAD_ARGUMENT;
  const int64_t element = shape->x_type == HEADRACE_X_FLOAT32 ? 4 : 2;
  shape->slots = sizeof(Doorbell);
  shape->x = round_up(shape->slots + tokens * routes * 8, VECTOR_BYTES);
  shape->rows = round_up(shape->x + tokens * hidden * element, VECTOR_BYTES);
  shape->bytes = round_up(shape->rows + tokens * routes * hidden * 4, VECTOR_BYTES);
  return HEADRACE_OK;
}

int32_t headrace_doorbell_ring(void *block, int32_t layer, int32_t tokens, int32_t routes,
                               uint32_t *ticket) {
  Doorbell &bell = *static_cast<Doorbell *>(block);
  *ticket = 0;
  if (bell.poison.load(std::memory_order_acquire)) return HEADRACE_POISONED;
  const auto *slots = reinterpret_cast<const int64_t *>(&bell + 1);
  const int64_t count = static_cast<int64_t>(tokens) * routes;
  if (std::all_of(slots, slots + count, [](int64_t slot) { return slot < 0; })) return HEADRACE_OK;
  bell.layer = layer;
  bell.tokens = tokens;
  bell.routes = routes;
  bell.ready.store(0, std::memory_order_relaxed);
  const uint32_t next = bell.request.load(std::memory_order_relaxed) + 1;
  *ticket = next == 0 ? 1 : next;
  bell.request.store(*ticket, std::memory_order_release);
  return HEADRACE_OK;
}

int32_t headrace_doorbell_wait(void *block, uint32_t ticket, int64_t nanoseconds) {
  Doorbell &bell = *static_cast<Doorbell *>(block);
  if (ticket != 0) {
    Event nobody;
    Ladder ladder;
    while (bell.response.load(std::memory_order_acquire) != ticket) {
      if (bell.poison.load(std::memory_order_acquire)) return HEADRACE_POISONED;
      if (ladder.waited() > nanoseconds) bell.spoil(HEADRACE_POISON_DEVICE_GAVE_UP);
      ladder.rest(nobody, nobody.count());
    }
  }
  return bell.poison.load(std::memory_order_acquire) ? HEADRACE_POISONED : HEADRACE_OK;
}

uint32_t headrace_doorbell_poison(const void *block) {
  return static_cast<const Doorbell *>(block)->poison.load(std::memory_order_acquire);
}

}  // extern "C"
