// Threads that work through the tasks of one region at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace {

constexpr int MAX_PHASES = 3;

// Up to MAX_PHASES lists of tasks; a phase begins when every task of the one before is done.
struct Region {
  int phases;
  int64_t tasks[MAX_PHASES];
  void (*work)(void *context, int phase, int64_t task, int thread);
  void *context;
};

// The caller works too, as thread 0. A region ends when its tasks are done, not when its threads
// have all been there: a thread that another program keeps from its core takes no task and delays
// nobody. Threads are not pinned, so that the system can move them away from such a core.
class Pool {
 public:
  Pool() = default;
  ~Pool() { resize(1); }
  Pool(const Pool &) = delete;
  Pool &operator=(const Pool &) = delete;

  // Returns how many threads there are, the caller's included. Fewer than asked for where the
  // system gives no more.
  int resize(int threads);
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // With at most `limit` threads. One region at a time: nobody else may call meanwhile.
  void run(const Region &region, int limit);

 private:
  struct Job;
  void serve(int thread);
  static void work(Job &job, int thread);

  std::vector<std::thread> workers_;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<Job *> job_{nullptr};
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace headrace
