// Threads that work through the tasks of one region at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "event.h"

namespace headrace {

constexpr int MAX_PHASES = 3;

// Up to MAX_PHASES lists of tasks; a phase begins when every task of the one before is done.
struct Region {
  int phases;
  int64_t tasks[MAX_PHASES];
  void (*work)(void *context, int phase, int64_t task, int thread);
  void *context;
  // Puts into place what `work` has left in memory of the thread's own. With it tasks that are late
  // are backed up: computed once more by other threads, and the first result is put into place. A
  // late thread may still read what `work` reads when `run` has returned; what `commit` writes to it
  // leaves alone. NULL: `work` does everything, and each task once.
  void (*commit)(void *context, int phase, int64_t task, int thread) = nullptr;
};

// The caller works too, as thread 0. A region ends when its tasks are done, not when its threads
// have all been there: a thread that another program keeps from its core takes no task, holds at
// most one, and not even that where tasks are backed up. Whoever comes first takes part, each with a
// range of a phase's tasks of its own; who is done with it takes single tasks from the others' ranges.
class Pool {
 public:
  Pool() = default;
  ~Pool() { stop(); }
  Pool(const Pool &) = delete;
  Pool &operator=(const Pool &) = delete;

  // Returns how many threads there are, the caller's included. Fewer than asked for where the
  // system gives no more.
  int resize(int threads);
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // CPUs for the workers, one a core: any of them, or `each` its own, where the caller's is the
  // first and the caller is there. None: anywhere.
  void place(std::vector<int> cpus, bool each);
  // How many workers the system has put where they were to run.
  int placed() const { return placed_.load(); }

  // Workers look for the next region this long before they sleep, in nanoseconds. For a caller
  // whose regions follow each other closely.
  void linger(int64_t nanoseconds) { linger_.store(nanoseconds, std::memory_order_relaxed); }

  // With at most `limit` threads. One region at a time: nobody else may call this, or what follows,
  // meanwhile. Returns the region's number; 0 if no worker can have been in it.
  uint64_t run(const Region &region, int limit);
  // Of a region that has ended, or of all of them: whether a worker may still read what it reads.
  bool attended(uint64_t region) const;
  bool attended() const;
  // Returns when none does.
  void settle() const;

 private:
  // Upper half: the lower half of the number of the region that it counts for. So a thread that wakes
  // in a later region than it fell asleep in can take nothing from it unknowingly, and nobody waits
  // for it.
  using Counter = std::atomic<uint64_t>;
  struct alignas(64) Lone {
    Counter value{0};
  };
  // A thread's part in a phase: how many tasks of its range have been taken, by anybody, and how many
  // tasks it has done, of any range.
  struct alignas(64) Share {
    Counter taken{0}, done{0};
  };
  // The region that a worker may be in, or NOWHERE.
  struct alignas(64) Attendance {
    std::atomic<uint64_t> region{NOWHERE};
  };
  static constexpr uint64_t NOWHERE = ~uint64_t{0};
  struct View;

  uint64_t run_from_second(Region region, int limit);
  void start(int threads);
  void stop();
  std::vector<int> cpus_of(int thread) const;
  void serve(int thread, uint64_t seen);
  void work(const View &view, int place, int thread);
  int64_t take(const View &view, int phase, int place, int thread);
  template <class Over>
  void back_up(const View &view, int phase, int place, int thread, Over over);
  void compute(const View &view, int phase, int place, int64_t task, int thread);
  void conclude(const View &view, int phase, int place);
  void reserve_winners(const Region &region);
  Share &share(int phase, int place) {
    return shares_[static_cast<size_t>(place * MAX_PHASES + phase)];
  }
  // The last region in which a task's result was put into place.
  std::atomic<uint64_t> &won(int phase, int64_t task) {
    return won_[phase][static_cast<size_t>(task)];
  }

  std::vector<std::thread> workers_;
  std::vector<int> cpus_;
  bool each_ = false;
  std::atomic<int> placed_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> linger_{20'000};

  // The region; atomic since a late thread may read it while the next one is written.
  std::atomic<int> phases_{0}, limit_{1};
  std::atomic<int64_t> tasks_[MAX_PHASES]{};
  std::atomic<void (*)(void *, int, int64_t, int)> work_{nullptr}, commit_{nullptr};
  std::atomic<void *> context_{nullptr};

  alignas(64) std::atomic<uint64_t> region_{0};
  Lone joined_;
  Lone done_[MAX_PHASES];               // none of a phase's tasks, or all
  std::vector<Share> shares_;           // [threads][MAX_PHASES]
  std::vector<Attendance> attendance_;  // [threads]
  std::vector<std::atomic<uint64_t>> won_[MAX_PHASES];
  Event begin_;     // a region began
  Event progress_;  // a phase ended
};

}  // namespace headrace
