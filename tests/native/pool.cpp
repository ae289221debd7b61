// Threads that are late, as where another program has their core: regions end without them, later ones
// too, each result is put into place once, and nobody touches a region's memory when it is used anew.
// Every value is plain memory: a sanitizer sees whoever reads or writes it too late.
#include "../../engine/native/source/pool.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

using namespace headrace;

namespace {

constexpr int64_t TASKS = 24;
constexpr int HELD_AMONG = 3;

void require(bool condition, const char *what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// What happens to a thread in the middle of a task, before and after it has won it.
struct Nothing {
  static void before(int, int) {}
  static void after() {}
};

// The first worker in a phase is held until it is released; the caller waits for that in the same one.
struct Held {
  static inline std::atomic<int> phase{-1};
  static inline std::atomic<bool> held{false}, released{false};
  static void before(int in, int thread) {
    if (in != phase.load()) return;
    if (thread == 0)
      while (!held.load()) std::this_thread::yield();
    else if (!held.exchange(true))
      while (!released.load()) std::this_thread::yield();
  }
  static void after() {}
};

// Now and then a thread loses its core, mostly while it computes.
struct Interrupted {
  static inline thread_local uint32_t bits = 1;
  static bool now(uint32_t often) {
    bits = bits * 1664525 + 1013904223;
    return (bits >> 8) % often == 0;
  }
  static void lose(int64_t microseconds) {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }
  static void before(int, int) {
    if (now(40)) lose(bits >> 26);
    if (now(5000)) lose(3000);
  }
  static void after() {
    if (now(400)) lose(100);
  }
};

// Each task of the second phase adds what the first one's have put into place.
template <class Late>
struct Sums {
  uint64_t region = 0;
  int64_t seed = 0;
  std::vector<int64_t> input, output, times;
  std::vector<int64_t> results = std::vector<int64_t>(64);  // a line for each of 8 threads

  void begin(int64_t from) {
    seed = from;
    input.assign(TASKS, -1);
    output.assign(TASKS, -1);
    times.assign(2 * TASKS, 0);  // that a task was put into place
  }
  static void work(void *context, int phase, int64_t task, int thread) {
    Sums &s = *static_cast<Sums *>(context);
    int64_t sum = s.seed + task;
    if (phase == 1)
      for (const int64_t value : s.input) sum += value;
    Late::before(phase, thread);
    s.results[static_cast<size_t>(thread * 8)] = sum + s.seed;
  }
  static void commit(void *context, int phase, int64_t task, int thread) {
    Sums &s = *static_cast<Sums *>(context);
    Late::after();
    ++s.times[static_cast<size_t>(phase * TASKS + task)];
    (phase == 0 ? s.input : s.output)[static_cast<size_t>(task)] =
        s.results[static_cast<size_t>(thread * 8)];
  }
  void run(Pool &pool, int64_t tasks) {
    region = pool.run({2, {TASKS, tasks}, work, this, commit}, pool.threads());
  }
  void check(int64_t tasks) const {
    for (int64_t i = 0; i < TASKS + tasks; ++i)
      require(times[static_cast<size_t>(i)] == 1, "each task is put into place once");
    for (int64_t i = 0; i < tasks; ++i)
      require(output[static_cast<size_t>(i)] ==
                  2 * seed + i + TASKS * 2 * seed + TASKS * (TASKS - 1) / 2,
              "a sum");
  }
};

void held() {
  Pool pool;
  require(pool.resize(HELD_AMONG) == HELD_AMONG, "threads");
  for (int round = 0; round < 100; ++round)
    for (const int phase : {0, 1}) {
      Held::held.store(false);
      Held::released.store(false);
      Held::phase.store(phase);
      Sums<Held> late;
      late.begin(round);
      late.run(pool, TASKS);
      Held::phase.store(-1);
      late.check(TASKS);
      require(pool.attended(late.region) && pool.attended(), "a late thread is seen");
      std::vector<Sums<Nothing>> others(5);
      for (Sums<Nothing> &each : others) {
        each.begin(round + 1);
        each.run(pool, TASKS);
        each.check(TASKS);
        require(pool.attended(late.region), "the late thread is still there");
      }
      Held::released.store(true);
      pool.settle();
      late.check(TASKS);
    }
}

// A region that backs nothing up, as between steps: its memory is gone when it has ended.
void plain(Pool &pool) {
  std::vector<int64_t> out(TASKS);
  const auto work = [](void *context, int, int64_t task, int) {
    (*static_cast<std::vector<int64_t> *>(context))[static_cast<size_t>(task)] = task;
  };
  pool.run({1, {TASKS}, work, &out}, pool.threads());
  for (int64_t i = 0; i < TASKS; ++i) require(out[static_cast<size_t>(i)] == i, "a plain region");
}

void interrupted(int threads, int rounds) {
  Pool pool;
  require(pool.resize(threads) == threads, "threads");
  std::vector<std::unique_ptr<Sums<Interrupted>>> kept;
  for (int round = 0; round < rounds; ++round) {
    Sums<Interrupted> *free = nullptr;
    for (const auto &each : kept)
      if (!pool.attended(each->region)) free = each.get();
    if (free == nullptr) free = kept.emplace_back(new Sums<Interrupted>).get();
    const int64_t tasks = 1 + round % TASKS;
    free->begin(round);
    free->run(pool, tasks);
    free->check(tasks);
    if (round % 7 == 0) plain(pool);
    if (round % 5000 == 4999) pool.resize(round % 10000 == 4999 ? 2 : threads);
    if (round % 500 == 499) pool.settle();
  }
  require(kept.size() <= static_cast<size_t>(threads), "a step for each thread that can be late");
}

}  // namespace

int main(int count, char **arguments) {
  held();
  for (const int threads : {2, 3, 4, 8})
    interrupted(threads, count > 1 ? std::atoi(arguments[1]) : 2000);
  std::printf("late threads are in order\n");
  return 0;
}
