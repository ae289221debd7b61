#include "affinity.h"

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <pthread/qos.h>
#elif defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#endif

namespace headrace {

#if defined(__linux__)

bool run_on(const std::vector<int> &cpus) {
  if (cpus.empty()) return false;
  int most = 0;
  for (const int cpu : cpus) most = cpu > most ? cpu : most;
  cpu_set_t *const set = CPU_ALLOC(static_cast<size_t>(most) + 1);
  if (set == nullptr) return false;
  const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most) + 1);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  const bool done = sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return done;
}

#elif defined(__APPLE__)

bool run_on(const std::vector<int> &) {
  pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0);
  return false;
}

#elif defined(_WIN32)

bool run_on(const std::vector<int> &cpus) {
  if (cpus.empty()) return false;
  GROUP_AFFINITY affinity{};
  affinity.Group = static_cast<WORD>(cpus[0] / 64);
  for (const int cpu : cpus)  // a thread runs in one group
    if (cpu / 64 == affinity.Group) affinity.Mask |= KAFFINITY{1} << (cpu % 64);
  return SetThreadGroupAffinity(GetCurrentThread(), &affinity, nullptr) != 0;
}

#else

bool run_on(const std::vector<int> &) { return false; }

#endif

}  // namespace headrace
