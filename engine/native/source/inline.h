// Functions of the tiers are inlined by force: a copy that the linker shared between tiers would
// run one tier's instructions on another's machine. For the same reason the tiers' translation
// units use no templates of the standard library.
#pragma once

#if defined(_MSC_VER)
#define HR_INLINE __forceinline
#else
#define HR_INLINE inline __attribute__((always_inline))
#endif

// Numbers that are to be broadcast from memory, which takes no shuffle: compilers would keep them
// in a register.
#if defined(__GNUC__)
#define HR_IN_MEMORY(array) __asm__("" : "+m"(array))
#else
#define HR_IN_MEMORY(array) static_cast<void>(array)
#endif

#if defined(__GNUC__)
#define HR_PREFETCH(address) __builtin_prefetch(address)
#elif defined(HEADRACE_X86)
#include <immintrin.h>
#define HR_PREFETCH(address) _mm_prefetch(reinterpret_cast<const char *>(address), _MM_HINT_T0)
#else
#define HR_PREFETCH(address) static_cast<void>(address)
#endif
