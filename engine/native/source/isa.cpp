// Which tiers this machine can run: what the processor has and what the system saves of it.
#include "tier.h"

#if defined(HEADRACE_X86)
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif
#if defined(HEADRACE_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headrace {

namespace {

#if defined(HEADRACE_X86)

struct Registers {
  uint32_t a, b, c, d;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r{};
#if defined(_MSC_VER)
  int out[4];
  __cpuidex(out, static_cast<int>(leaf), static_cast<int>(subleaf));
  r = {static_cast<uint32_t>(out[0]), static_cast<uint32_t>(out[1]),
       static_cast<uint32_t>(out[2]), static_cast<uint32_t>(out[3])};
#else
  __cpuid_count(leaf, subleaf, r.a, r.b, r.c, r.d);
#endif
  return r;
}

uint64_t saved_state() {
#if defined(_MSC_VER)
  return _xgetbv(0);
#else
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
#endif
}

bool bit(uint32_t value, int at) { return value >> at & 1; }

// Linux gives a process the tiles' registers when it asks for them, and its later threads too.
bool may_use_tiles() {
#if defined(HEADRACE_AMX)
  constexpr int REQUEST = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
  return false;
#endif
}

// The highest tier: 0 portable, 1 avx2, 2 avx512, 3 amx.
int detect() {
  const uint32_t leaves = cpuid(0, 0).a;
  if (leaves < 7) return 0;
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0);
  const bool osxsave = bit(one.c, 27);
  if (!osxsave || (saved_state() & 0x6) != 0x6) return 0;
  const bool fma = bit(one.c, 12), f16c = bit(one.c, 29), avx = bit(one.c, 28);
  if (!avx || !fma || !f16c || !bit(seven.b, 5)) return 0;
  const bool f = bit(seven.b, 16), dq = bit(seven.b, 17), bw = bit(seven.b, 30);
  const bool vl = bit(seven.b, 31);
  if ((saved_state() & 0xE6) != 0xE6 || !f || !dq || !bw || !vl) return 1;
  const bool tiles = bit(seven.d, 24) && bit(seven.d, 22) && (saved_state() & 0x60000) == 0x60000;
  const bool bf16 = seven.a >= 1 && bit(cpuid(7, 1).a, 5);
  return tiles && bf16 && may_use_tiles() ? 3 : 2;
}

#elif defined(HEADRACE_NEON)

int detect() { return 1; }  // every aarch64 has it

#else

int detect() { return 0; }

#endif

}  // namespace

namespace {

// Apart from the tables: a tier's translation unit runs on machines that have the tier.
constexpr const char *names[] = {
    "portable",
#if defined(HEADRACE_X86)
    "avx2", "avx512",
#if defined(HEADRACE_AMX)
    "amx",
#endif
#elif defined(HEADRACE_NEON)
    "neon",
#endif
};

}  // namespace

int tier_count() { return static_cast<int>(sizeof names / sizeof *names); }

const char *tier_name(int index) {
  return index >= 0 && index < tier_count() ? names[index] : nullptr;
}

const Tier *tier(int index) {
  switch (index) {
    case 0:
      return portable_tier();
#if defined(HEADRACE_X86)
    case 1:
      return avx2_tier();
    case 2:
      return avx512_tier();
#if defined(HEADRACE_AMX)
    case 3:
      return amx_tier();
#endif
#elif defined(HEADRACE_NEON)
    case 1:
      return neon_tier();
#endif
    default:
      return nullptr;
  }
}

bool tier_usable(int index) {
  static const int highest = detect();
  return index >= 0 && index <= highest;
}

}  // namespace headrace
