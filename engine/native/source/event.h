// How threads wait: for a moment by looking, then asleep. They never yield in between: where other
// programs use the core the system hands each of them a whole slice first, while a thread that slept
// has a claim to be put on at once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#if !defined(__linux__)
#include <condition_variable>
#include <mutex>
#endif

namespace headrace {

// A hint to the processor that this thread only waits.
void relax();

inline int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr int EVERYBODY = 1 << 30;
constexpr int64_t FOR_EVER = -1;

// A count that threads sleep on until it moves. Raising it costs a system call only while somebody
// sleeps.
class Event {
 public:
  uint32_t count() const { return count_.load(); }
  void raise(int most = EVERYBODY) {
    count_.fetch_add(1);
    wake(most);
  }
  // Wakes up to `most` sleepers, where the system can tell; else all.
  void wake(int most);
  // Until the count is not `seen`, for at most so long; may return early.
  void sleep(uint32_t seen, int64_t nanoseconds = FOR_EVER);

 private:
  // A sleeper counts itself before the system compares `seen`, and whoever raises counts first
  // and looks for sleepers then: in one total order, one of them sees the other.
  alignas(64) std::atomic<uint32_t> count_{0};
  std::atomic<int> sleepers_{0};
#if !defined(__linux__)
  std::mutex mutex_;
  std::condition_variable moved_;
#endif
};

// Looks until `ready()`, after which what it read counts, for about so long; the answer is whether it
// was.
template <class Ready>
bool look_until(int64_t nanoseconds, Ready ready) {
  constexpr int LOOKS = 16;  // between two looks at the clock
  const int64_t begin = nanoseconds_now();
  do {
    for (int i = 0; i < LOOKS; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (nanoseconds_now() - begin < nanoseconds);
  return false;
}

// Returns when `ready()`. Looks for `spin` nanoseconds, then sleeps; the answer is whether it slept.
template <class Ready>
bool wait_until(Event &event, int64_t spin, Ready ready) {
  if (look_until(spin, ready)) return false;
  for (;;) {
    const uint32_t seen = event.count();
    if (ready()) return true;
    event.sleep(seen);
  }
}

// How to wait for memory that another side changes without waking anybody: look, then sleep, each
// time for a quarter of the wait so far. So a wait is found over at most a quarter late, or LONGEST.
class Ladder {
 public:
  static constexpr int64_t SPIN = 50'000, SHORTEST = 20'000, LONGEST = 5'000'000;

  void restart() { begin_ = nanoseconds_now(); }
  int64_t waited() const { return nanoseconds_now() - begin_; }
  // Whoever raises `event` from `seen` ends a sleep at once.
  void rest(Event &event, uint32_t seen, int64_t spin = SPIN);

 private:
  int64_t begin_ = nanoseconds_now();
};

}  // namespace headrace
