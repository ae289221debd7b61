#include "event.h"

#include <algorithm>
#include <thread>

#if defined(HEADRACE_X86)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

namespace headrace {

void relax() {
#if defined(HEADRACE_X86)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // `yield` takes no time at all there
#else
  std::this_thread::yield();
#endif
}

void Ladder::rest(Event &event, uint32_t seen, int64_t spin) {
  constexpr int LOOK_EVERY = 16;
  const int64_t so_far = waited();
  if (so_far < spin)
    for (int i = 0; i < LOOK_EVERY; ++i) relax();
  else
    event.sleep(seen, std::clamp(so_far / 4, SHORTEST, LONGEST));
}

#if defined(__linux__)

void Event::wake(int most) {
  if (sleepers_.load() > 0)
    syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
}

void Event::sleep(uint32_t seen, int64_t nanoseconds) {
  const timespec length{static_cast<time_t>(nanoseconds / 1'000'000'000),
                        static_cast<long>(nanoseconds % 1'000'000'000)};
  sleepers_.fetch_add(1);
  syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, seen, nanoseconds < 0 ? nullptr : &length,
          nullptr, 0);
  sleepers_.fetch_sub(1);
}

#else

void Event::wake(int) {
  if (sleepers_.load() == 0) return;
  { const std::lock_guard<std::mutex> lock(mutex_); }
  moved_.notify_all();
}

void Event::sleep(uint32_t seen, int64_t nanoseconds) {
  const auto moved = [&] { return count_.load() != seen; };
  sleepers_.fetch_add(1);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (nanoseconds < 0)
      moved_.wait(lock, moved);
    else
      moved_.wait_for(lock, std::chrono::nanoseconds(nanoseconds), moved);
  }
  sleepers_.fetch_sub(1);
}

#endif

}  // namespace headrace
