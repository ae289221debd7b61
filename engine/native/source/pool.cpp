#include "pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "affinity.h"

namespace headrace {

namespace {

// Longer than the last tasks of a phase take, and over before another program would notice.
constexpr int64_t PHASE_SPIN = 20'000;
// Waking one costs about as much as a small task: the woken ones wake the others.
constexpr int WAKES = 3;

constexpr uint64_t tagged(uint32_t region) { return static_cast<uint64_t>(region) << 32; }

// The next number below `end`, or -1: there is none, or the counter counts for another region.
int64_t next(std::atomic<uint64_t> &counter, uint32_t region, int64_t end) {
  uint64_t value = counter.load(std::memory_order_acquire);
  while (value >> 32 == region && static_cast<int64_t>(value & 0xffffffff) < end)
    if (counter.compare_exchange_weak(value, value + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
      return static_cast<int64_t>(value & 0xffffffff);
  return -1;
}

}  // namespace

// A region as one thread read it, perhaps torn if the thread is late. But the counters move on to a
// region before its fields are written: who has read one of those finds the counters moved, and
// takes nothing; who takes a task has read its region, and keeps it from ending.
struct Pool::View {
  uint32_t number;
  Region region;
  int limit;

  explicit View(const Pool &pool)
      : number(pool.region_.load(std::memory_order_acquire)),
        region{pool.phases_.load(std::memory_order_acquire),
               {},
               pool.work_.load(std::memory_order_acquire),
               pool.context_.load(std::memory_order_acquire)},
        limit(pool.limit_.load(std::memory_order_acquire)) {
    for (int i = 0; i < MAX_PHASES; ++i)
      region.tasks[i] = pool.tasks_[i].load(std::memory_order_acquire);
  }

  int64_t first(int phase, int place) const { return region.tasks[phase] * place / limit; }
};

int Pool::resize(int threads) {
  threads = std::max(threads, 1);
  if (threads == this->threads()) return threads;
  stop();
  start(threads);
  return this->threads();
}

void Pool::place(std::vector<int> cpus, bool each) {
  if (cpus == cpus_ && each == each_) return;
  const int threads = this->threads();
  stop();
  cpus_ = std::move(cpus);
  each_ = each;
  start(threads);
}

void Pool::start(int threads) {
  taken_ = std::vector<Counter>(static_cast<size_t>(threads * MAX_PHASES));
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) {
    try {
      workers_.emplace_back([this, thread, seen = region_.load()] {
        if (!cpus_.empty() && run_on(cpus_of(thread))) placed_.fetch_add(1);
        serve(thread, seen);
      });
    } catch (const std::system_error &) {
      break;
    }
  }
}

std::vector<int> Pool::cpus_of(int thread) const {
  if (!each_) return cpus_;
  return {cpus_[static_cast<size_t>(thread) % cpus_.size()]};
}

void Pool::stop() {
  stop_.store(true);
  begin_.raise();
  for (std::thread &worker : workers_) worker.join();
  workers_.clear();
  placed_.store(0);
  stop_.store(false);
}

void Pool::serve(int thread, uint32_t seen) {
  for (;;) {
    const auto called = [&] { return region_.load() != seen || stop_.load(); };
    const bool slept = wait_until(begin_, linger_.load(std::memory_order_relaxed), called);
    if (stop_.load()) return;
    const View view(*this);
    seen = view.number;
    const int64_t place = next(joined_.value, view.number, view.limit);
    if (slept && place >= 0 && place + 1 < view.limit) begin_.wake(WAKES);
    if (place >= 0) work(view, static_cast<int>(place), thread);
  }
}

void Pool::take(const View &view, int phase, int place, int thread) {
  const int64_t tasks = view.region.tasks[phase];
  int64_t mine = 0;
  for (int i = 0; i < view.limit; ++i) {
    const int owner = (place + i) % view.limit;
    const int64_t first = view.first(phase, owner), end = view.first(phase, owner + 1) - first;
    std::atomic<uint64_t> &counter = taken(phase, owner).value;
    for (int64_t at; (at = next(counter, view.number, end)) >= 0; ++mine)
      view.region.work(view.region.context, phase, first + at, thread);
  }
  if (mine == 0) return;
  const uint64_t before =
      done_[phase].value.fetch_add(static_cast<uint64_t>(mine), std::memory_order_acq_rel);
  if (before + static_cast<uint64_t>(mine) == tagged(view.number) + static_cast<uint64_t>(tasks))
    progress_.raise();
}

void Pool::work(const View &view, int place, int thread) {
  for (int phase = 0; phase < view.region.phases; ++phase) {
    const uint64_t all = tagged(view.number) + static_cast<uint64_t>(view.region.tasks[phase]);
    const auto over = [&] {
      const uint64_t done = done_[phase].value.load(std::memory_order_acquire);
      return done == all || done >> 32 != view.number;
    };
    if (over()) continue;
    take(view, phase, place, thread);
    if (thread != 0 && phase + 1 == view.region.phases) return;
    wait_until(progress_, PHASE_SPIN, over);
  }
}

// A first phase of one task is not worth a barrier.
void Pool::run_from_second(Region region, int limit) {
  region.work(region.context, 0, 0, 0);
  Region rest{region.phases - 1, {}, nullptr, &region};
  std::copy(region.tasks + 1, region.tasks + region.phases, rest.tasks);
  rest.work = [](void *whole, int phase, int64_t task, int thread) {
    const Region &r = *static_cast<const Region *>(whole);
    r.work(r.context, phase + 1, task, thread);
  };
  run(rest, limit);
}

void Pool::run(const Region &region, int limit) {
  limit = std::min(limit, threads());
  if (limit <= 1) {
    for (int phase = 0; phase < region.phases; ++phase)
      for (int64_t task = 0; task < region.tasks[phase]; ++task)
        region.work(region.context, phase, task, 0);
    return;
  }
  if (region.phases > 1 && region.tasks[0] == 1) return run_from_second(region, limit);
  const uint32_t number = region_.load(std::memory_order_relaxed) + 1;
  joined_.value.store(tagged(number) + 1, std::memory_order_relaxed);  // the caller
  for (int phase = 0; phase < region.phases; ++phase) {
    done_[phase].value.store(tagged(number), std::memory_order_relaxed);
    for (int place = 0; place < limit; ++place)
      taken(phase, place).value.store(tagged(number), std::memory_order_relaxed);
  }
  for (int phase = 0; phase < region.phases; ++phase)
    tasks_[phase].store(region.tasks[phase], std::memory_order_release);
  phases_.store(region.phases, std::memory_order_release);
  limit_.store(limit, std::memory_order_release);
  work_.store(region.work, std::memory_order_release);
  context_.store(region.context, std::memory_order_release);
  region_.store(number);
  begin_.raise(std::min(WAKES, limit - 1));
  work(View(*this), 0, 0);
}

}  // namespace headrace
