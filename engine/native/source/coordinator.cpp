// The thread that answers a device's requests for rows of experts, and the one that watches it.
#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include "affinity.h"
#include "doorbell.h"
#include "engine.h"
#include "event.h"

using namespace headrace;

namespace {

constexpr int64_t MILLISECOND = 1'000'000;
// How much longer than usual the coordinator looks for a request during a step, and the pool's
// workers for a region: a layer of a fast device takes less.
constexpr int64_t EAGER = 8, LINGER = 400'000, USUAL_LINGER = 20'000;

// How long the same thing has been pending, as far as the watchdog has seen.
struct Watch {
  uint64_t pending = 0;
  int64_t since = 0;

  bool late(uint64_t now_pending, int64_t now, int64_t limit) {
    if (now_pending != pending) {
      pending = now_pending;
      since = now;
    }
    return pending != 0 && now - since > limit;
  }
};

// Spinning is worth as long as a sleep takes beyond what was asked for.
int64_t worthwhile_spin() {
  constexpr int TRIES = 5;
  Event nobody;
  int64_t over[TRIES];
  for (int64_t &each : over) {
    const int64_t begin = nanoseconds_now();
    nobody.sleep(nobody.count(), Ladder::SHORTEST);
    each = nanoseconds_now() - begin - Ladder::SHORTEST;
  }
  std::nth_element(over, over + TRIES / 2, over + TRIES);
  return std::clamp<int64_t>(over[TRIES / 2], 20'000, 500'000);
}

}  // namespace

struct headrace_coordinator {
  std::vector<headrace_layer> layers;
  headrace_doorbell_shape shape;
  uint8_t *block;
  Doorbell &bell;
  int64_t answer_ns;
  int cpu;

  std::atomic<bool> stop{false};
  std::atomic<uint64_t> step{0};  // the number of the one that goes on; 0: none
  std::atomic<int64_t> step_ns{0};
  uint64_t steps = 0;  // begun so far
  std::atomic<uint64_t> answers{0}, busy_ns{0};
  std::atomic<int> running{0};
  Event called{};   // for the server: a step began, or it is time to stop
  Event leaving{};  // for the watchdog: it is time to stop
  Event stopped{};  // one of the two has ended
  std::thread server{}, watchdog{};

  void serve();
  void answer(uint32_t request);
  int32_t compute();
  void watch();
  void leave() {
    stop.store(true);
    called.raise();
    leaving.raise();
  }
  void ended() {
    running.fetch_sub(1);
    stopped.raise();
  }
};

void headrace_coordinator::serve() {
  if (cpu >= 0) run_on({cpu});
#if defined(__linux__)
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; 50,000 otherwise
#endif
  const int64_t spin = worthwhile_spin();
  uint32_t answered = 0, calls = called.count();
  Ladder ladder;
  while (!stop.load()) {
    if (bell.poison.load(std::memory_order_acquire)) {
      called.sleep(calls);  // until the end
      calls = called.count();
      continue;
    }
    if (const uint32_t now = called.count(); now != calls) {
      calls = now;
      ladder.restart();
    }
    if (const uint32_t request = bell.request.load(std::memory_order_acquire); request != answered) {
      answer(request);
      answered = request;
      ladder.restart();
    } else {
      ladder.rest(called, calls, step.load(std::memory_order_relaxed) ? EAGER * spin : spin);
    }
  }
  bell.spoil(HEADRACE_POISON_CLOSED);
  ended();
}

void headrace_coordinator::answer(uint32_t request) {
  const int64_t begin = nanoseconds_now();
  if (const int32_t status = compute(); status != HEADRACE_OK)
    return bell.spoil(HEADRACE_POISON_REFUSED + static_cast<uint32_t>(status));
  busy_ns.fetch_add(static_cast<uint64_t>(nanoseconds_now() - begin), std::memory_order_relaxed);
  answers.fetch_add(1, std::memory_order_relaxed);
  if (bell.poison.load(std::memory_order_acquire)) return;
  bell.response.store(request, std::memory_order_release);
  bell.ready.store(1, std::memory_order_release);
}

int32_t headrace_coordinator::compute() {
  const int32_t number = bell.layer;
  if (number < 0 || number >= static_cast<int32_t>(layers.size()) || bell.tokens < 0 ||
      bell.tokens > shape.tokens || bell.routes < 0 || bell.routes > shape.routes)
    return HEADRACE_BAD_ARGUMENT;
  const headrace_layer &layer = layers[static_cast<size_t>(number)];
  const int32_t status = headrace_moe_rows(
      &layer.experts, layer.bank, layer.blobs, block + shape.x, shape.x_type, bell.tokens,
      bell.routes, reinterpret_cast<const int64_t *>(block + shape.slots), layer.activation,
      reinterpret_cast<float *>(block + shape.rows));
  return status == HEADRACE_LATE ? HEADRACE_OK : status;  // banks stay until all is closed
}

void headrace_coordinator::watch() {
  const int64_t tick = std::clamp(answer_ns / 8, MILLISECOND, 50 * MILLISECOND);
  Watch request, whole;
  // Only time in which this thread ran counts: a machine that was suspended is not late.
  int64_t awake = 0, last = nanoseconds_now();
  while (!stop.load()) {
    const uint32_t seen = leaving.count();
    if (stop.load()) break;
    leaving.sleep(seen, tick);
    const int64_t now = nanoseconds_now();
    awake += std::min(now - last, 4 * tick);
    last = now;
    const uint32_t asked = bell.request.load(std::memory_order_acquire);
    const uint32_t answered = bell.response.load(std::memory_order_acquire);
    if (request.late(asked == answered ? 0 : asked, awake, answer_ns))
      bell.spoil(HEADRACE_POISON_LATE_ANSWER);
    const uint64_t going_on = step.load(std::memory_order_acquire);
    if (whole.late(going_on, awake, step_ns.load(std::memory_order_relaxed)))
      bell.spoil(HEADRACE_POISON_LATE_STEP);
  }
  ended();
}

extern "C" {

int32_t headrace_coordinator_open(const headrace_layer *layers, int32_t count,
                                  const headrace_doorbell_shape *shape, void *block,
                                  int64_t answer_ns, int32_t cpu, headrace_coordinator **opened) {
  headrace_doorbell_shape full = *shape;
  if (headrace_doorbell_layout(&full) != HEADRACE_OK || count < 0 || answer_ns < 1 ||
      reinterpret_cast<uintptr_t>(block) % alignof(Doorbell) != 0)
    return HEADRACE_BAD_ARGUMENT;
  for (int32_t i = 0; i < count; ++i)
    if (layers[i].experts.hidden != shape->hidden) return HEADRACE_BAD_ARGUMENT;
  try {
    std::unique_ptr<headrace_coordinator> made(new headrace_coordinator{
        {layers, layers + count}, full, static_cast<uint8_t *>(block), *new (block) Doorbell,
        answer_ns, cpu});
    headrace_coordinator &c = *made;
    c.running.store(1);
    c.watchdog = std::thread([&c] { c.watch(); });
    try {
      c.running.fetch_add(1);
      c.server = std::thread([&c] { c.serve(); });
    } catch (...) {
      c.leave();
      c.watchdog.join();
      throw;
    }
    *opened = made.release();
    return HEADRACE_OK;
  } catch (const std::exception &) {  // no memory, no thread
    return HEADRACE_OUT_OF_MEMORY;
  }
}

void headrace_coordinator_begin(headrace_coordinator *c, int64_t step_ns) {
  c->step_ns.store(step_ns, std::memory_order_relaxed);
  c->step.store(++c->steps, std::memory_order_release);
  shared().pool.linger(LINGER);
  c->called.raise();
}

void headrace_coordinator_end(headrace_coordinator *c) {
  c->step.store(0, std::memory_order_release);
  shared().pool.linger(USUAL_LINGER);
}

uint64_t headrace_coordinator_answers(const headrace_coordinator *c) { return c->answers.load(); }

uint64_t headrace_coordinator_busy_ns(const headrace_coordinator *c) { return c->busy_ns.load(); }

int32_t headrace_coordinator_close(headrace_coordinator *c, int64_t patience_ns) {
  const int64_t begin = nanoseconds_now();
  headrace_coordinator_end(c);
  c->leave();
  for (;;) {
    const uint32_t seen = c->stopped.count();
    if (c->running.load() == 0) break;
    const int64_t left = patience_ns - (nanoseconds_now() - begin);
    if (left <= 0) {
      c->bell.spoil(HEADRACE_POISON_CLOSED);
      return HEADRACE_LATE;
    }
    c->stopped.sleep(seen, left);
  }
  c->server.join();
  c->watchdog.join();
  headrace_settle();
  delete c;
  return HEADRACE_OK;
}

}  // extern "C"
