#include "pool.h"

#include <system_error>

#if defined(HEADRACE_X86)
#include <immintrin.h>
#endif

namespace headrace {

namespace {

// Meant to outlast the gap between two regions of one layer, and to be over before another program
// would notice.
constexpr int SPINS = 500;

inline void relax() {
#if defined(HEADRACE_X86)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

template <class Ready>
void spin_until(Ready ready) {
  for (int i = 0; !ready(); ++i) {
    if (i < SPINS)
      relax();
    else
      std::this_thread::yield();
  }
}

}  // namespace

struct Pool::Job {
  Region region;
  int limit;
  struct alignas(64) Count {
    std::atomic<int64_t> claimed{0};
    alignas(64) std::atomic<int64_t> done{0};
  } counts[MAX_PHASES];
};

int Pool::resize(int threads) {
  const size_t wanted = threads > 1 ? static_cast<size_t>(threads - 1) : 0;
  if (wanted < workers_.size()) {
    stop_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread &worker : workers_) worker.join();
    workers_.clear();
    stop_.store(false);
  }
  workers_.reserve(wanted);
  while (workers_.size() < wanted) {
    const int thread = static_cast<int>(workers_.size()) + 1;
    try {
      workers_.emplace_back([this, thread] { serve(thread); });
    } catch (const std::system_error &) {
      break;
    }
  }
  return this->threads();
}

void Pool::serve(int thread) {
  uint32_t seen = generation_.load();
  for (;;) {
    if (stop_.load()) return;
    // Entered before the job is read: once the caller has taken it away and sees nobody inside,
    // nobody can still hold it. That needs the total order of sequential consistency.
    inside_.fetch_add(1);
    if (Job *job = job_.load(); job != nullptr && thread < job->limit) work(*job, thread);
    inside_.fetch_sub(1);
    for (int i = 0; i < SPINS && generation_.load(std::memory_order_acquire) == seen; ++i) relax();
    generation_.wait(seen);
    seen = generation_.load();
  }
}

void Pool::work(Job &job, int thread) {
  const Region &region = job.region;
  for (int phase = 0; phase < region.phases; ++phase) {
    auto &[claimed, done] = job.counts[phase];
    const int64_t tasks = region.tasks[phase];
    int64_t mine = 0;
    for (;;) {
      const int64_t task = claimed.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks) break;
      region.work(region.context, phase, task, thread);
      ++mine;
    }
    if (mine) done.fetch_add(mine, std::memory_order_acq_rel);
    if (thread != 0 && phase + 1 == region.phases) return;
    spin_until([&] { return done.load(std::memory_order_acquire) == tasks; });
  }
}

void Pool::run(const Region &region, int limit) {
  if (limit <= 1 || workers_.empty()) {
    for (int phase = 0; phase < region.phases; ++phase)
      for (int64_t task = 0; task < region.tasks[phase]; ++task)
        region.work(region.context, phase, task, 0);
    return;
  }
  Job job;
  job.region = region;
  job.limit = limit;
  job_.store(&job);
  generation_.fetch_add(1);
  generation_.notify_all();
  work(job, 0);
  job_.store(nullptr);
  spin_until([&] { return inside_.load() == 0; });
}

}  // namespace headrace
