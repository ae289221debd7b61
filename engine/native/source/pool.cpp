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
// A task is late when it takes so many times what others do, within bounds: much less and threads
// repeat what is about to be done, much more and they stand still beside a busy core.
constexpr int64_t TIMES_OTHERS = 2, SHORTEST_PATIENCE = 10'000, LONGEST_PATIENCE = 1'000'000;

constexpr uint64_t tagged(uint64_t region) { return region << 32; }
constexpr bool counts_for(uint64_t value, uint64_t region) {
  return value >> 32 == (region & 0xffffffff);
}

// The next number below `end`, or -1: there is none, or the counter counts for another region.
int64_t next(std::atomic<uint64_t> &counter, uint64_t region, int64_t end) {
  uint64_t value = counter.load(std::memory_order_acquire);
  while (counts_for(value, region) && static_cast<int64_t>(value & 0xffffffff) < end)
    if (counter.compare_exchange_weak(value, value + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
      return static_cast<int64_t>(value & 0xffffffff);
  return -1;
}

}  // namespace

// A region as one thread read it, perhaps torn if the thread is late. But the counters move on to a
// region before its fields are written: who has read one of those finds the counters moved, and
// takes nothing; who takes a task has read its region, and keeps it from ending or, where tasks are
// backed up, its memory from being used anew.
struct Pool::View {
  uint64_t number;
  Region region;
  int limit;

  explicit View(const Pool &pool)
      : number(pool.region_.load(std::memory_order_acquire)),
        region{pool.phases_.load(std::memory_order_acquire),
               {},
               pool.work_.load(std::memory_order_acquire),
               pool.context_.load(std::memory_order_acquire),
               pool.commit_.load(std::memory_order_acquire)},
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
  shares_ = std::vector<Share>(static_cast<size_t>(threads * MAX_PHASES));
  attendance_ = std::vector<Attendance>(static_cast<size_t>(threads));
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

bool Pool::attended(uint64_t region) const {
  return std::any_of(attendance_.begin(), attendance_.end(),
                     [=](const Attendance &at) { return at.region.load() == region; });
}

bool Pool::attended() const {
  return std::any_of(attendance_.begin(), attendance_.end(),
                     [](const Attendance &at) { return at.region.load() != NOWHERE; });
}

void Pool::settle() const {
  Event nobody;
  Ladder ladder;
  while (attended()) ladder.rest(nobody, nobody.count());
}

// A worker says where it is before it looks whether a phase is over, and whoever asks who is there
// has seen the last phase end: in one total order, either the worker sees that too and keeps its hands
// off what the region reads, or it is seen.
void Pool::serve(int thread, uint64_t seen) {
  std::atomic<uint64_t> &attends = attendance_[static_cast<size_t>(thread)].region;
  for (;;) {
    const auto called = [&] { return region_.load() != seen || stop_.load(); };
    const bool slept = wait_until(begin_, linger_.load(std::memory_order_relaxed), called);
    if (stop_.load()) return;
    const View view(*this);
    seen = view.number;
    attends.exchange(view.number);
    const int64_t place = next(joined_.value, view.number, view.limit);
    if (slept && place >= 0 && place + 1 < view.limit) begin_.wake(WAKES);
    if (place >= 0) work(view, static_cast<int>(place), thread);
    attends.store(NOWHERE, std::memory_order_release);
  }
}

void Pool::work(const View &view, int place, int thread) {
  for (int phase = 0; phase < view.region.phases; ++phase) {
    const uint64_t all = tagged(view.number) + static_cast<uint64_t>(view.region.tasks[phase]);
    const auto over = [&] {
      const uint64_t done = done_[phase].value.load();
      return done == all || !counts_for(done, view.number);
    };
    if (over()) continue;
    const int64_t begin = nanoseconds_now();
    const int64_t tasks = take(view, phase, place, thread);
    conclude(view, phase, place);
    if (view.region.commit != nullptr) {
      const int64_t each = (nanoseconds_now() - begin) / std::max<int64_t>(tasks, 1);
      const int64_t patience =
          std::clamp(TIMES_OTHERS * each, SHORTEST_PATIENCE, LONGEST_PATIENCE);
      if (!look_until(patience, over)) back_up(view, phase, place, thread, over);
    }
    if (thread != 0 && phase + 1 == view.region.phases) return;
    wait_until(progress_, PHASE_SPIN, over);
  }
}

// Returns how many.
int64_t Pool::take(const View &view, int phase, int place, int thread) {
  int64_t tasks = 0;
  for (int i = 0; i < view.limit; ++i) {
    const int owner = (place + i) % view.limit;
    const int64_t first = view.first(phase, owner), end = view.first(phase, owner + 1) - first;
    for (int64_t at; (at = next(share(phase, owner).taken, view.number, end)) >= 0; ++tasks)
      compute(view, phase, place, first + at, thread);
  }
  return tasks;
}

// What has been taken and is not done, each thread from another place on. Then everything has a
// winner: whoever waits still, waits for one that puts a result into place.
template <class Over>
void Pool::back_up(const View &view, int phase, int place, int thread, Over over) {
  const int64_t tasks = view.region.tasks[phase], first = view.first(phase, place);
  for (int64_t i = 0; i < tasks; ++i) {
    const int64_t task = first + i < tasks ? first + i : first + i - tasks;
    if (won(phase, task).load(std::memory_order_relaxed) >= view.number) continue;
    if (over()) return;
    compute(view, phase, place, task, thread);
  }
  conclude(view, phase, place);
}

// Whoever wins a task counts it, whether it took the task or backed it up: nobody else can know that
// the result is in its place. It counts at once, since it may be late with the next task.
void Pool::compute(const View &view, int phase, int place, int64_t task, int thread) {
  const Region &region = view.region;
  region.work(region.context, phase, task, thread);
  if (region.commit != nullptr) {
    std::atomic<uint64_t> &winner = won(phase, task);
    uint64_t before = winner.load(std::memory_order_relaxed);
    do {
      if (before >= view.number) return;
    } while (!winner.compare_exchange_weak(before, view.number, std::memory_order_acq_rel,
                                           std::memory_order_relaxed));
    region.commit(region.context, phase, task, thread);
  }
  Counter &done = share(phase, place).done;
  done.store(done.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

// Ends a phase whose tasks are all done. Each thread looks when it finds no more tasks, and before it
// looks it exchanges its own count: in one total order, the last one sees what all have done.
void Pool::conclude(const View &view, int phase, int place) {
  share(phase, place).done.fetch_add(0);
  uint64_t done = 0;
  for (int i = 0; i < view.limit; ++i) {
    const uint64_t count = share(phase, i).done.load();
    if (!counts_for(count, view.number)) return;
    done += count & 0xffffffff;
  }
  const uint64_t tasks = static_cast<uint64_t>(view.region.tasks[phase]);
  uint64_t none = tagged(view.number);
  if (done == tasks && done_[phase].value.compare_exchange_strong(none, none + tasks))
    progress_.raise();
}

// A first phase of one task is not worth a barrier.
uint64_t Pool::run_from_second(Region region, int limit) {
  region.work(region.context, 0, 0, 0);
  Region rest{region.phases - 1, {}, nullptr, &region, nullptr};
  std::copy(region.tasks + 1, region.tasks + region.phases, rest.tasks);
  rest.work = [](void *whole, int phase, int64_t task, int thread) {
    const Region &r = *static_cast<const Region *>(whole);
    r.work(r.context, phase + 1, task, thread);
  };
  return run(rest, limit);
}

void Pool::reserve_winners(const Region &region) {
  for (int phase = 0; phase < region.phases; ++phase) {
    const size_t tasks = static_cast<size_t>(region.tasks[phase]);
    if (tasks <= won_[phase].size()) continue;
    settle();
    won_[phase] = std::vector<std::atomic<uint64_t>>(std::max(tasks, 2 * won_[phase].size()));
  }
}

uint64_t Pool::run(const Region &region, int limit) {
  limit = std::min(limit, threads());
  if (limit <= 1) {
    for (int phase = 0; phase < region.phases; ++phase)
      for (int64_t task = 0; task < region.tasks[phase]; ++task) {
        region.work(region.context, phase, task, 0);
        if (region.commit != nullptr) region.commit(region.context, phase, task, 0);
      }
    return 0;
  }
  if (region.commit != nullptr)
    reserve_winners(region);
  else if (region.phases > 1 && region.tasks[0] == 1)
    return run_from_second(region, limit);
  const uint64_t number = region_.load(std::memory_order_relaxed) + 1;
  joined_.value.store(tagged(number) + 1, std::memory_order_relaxed);  // the caller
  for (int phase = 0; phase < region.phases; ++phase) {
    done_[phase].value.store(tagged(number), std::memory_order_relaxed);
    for (int place = 0; place < limit; ++place) {
      share(phase, place).taken.store(tagged(number), std::memory_order_relaxed);
      share(phase, place).done.store(tagged(number), std::memory_order_relaxed);
    }
  }
  for (int phase = 0; phase < region.phases; ++phase)
    tasks_[phase].store(region.tasks[phase], std::memory_order_release);
  phases_.store(region.phases, std::memory_order_release);
  limit_.store(limit, std::memory_order_release);
  work_.store(region.work, std::memory_order_release);
  context_.store(region.context, std::memory_order_release);
  commit_.store(region.commit, std::memory_order_release);
  region_.store(number);
  begin_.raise(std::min(WAKES, limit - 1));
  work(View(*this), 0, 0);
  return number;
}

}  // namespace headrace
