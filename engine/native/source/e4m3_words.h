// e4m3 by way of float16, two neighbours in each lane: for tiers without a way of their own.
#pragma once

namespace headrace::HEADRACE_TIER {

constexpr int e4m3_place(int i) { return i - i % (2 * W) + i % 2 * W + i % (2 * W) / 2; }

template <bool full, bool may_be_nan, class Visit>
HR_INLINE void visit_e4m3_words(const uint8_t *p, int bytes, Visit &visit) {
  for (int i = 0; i < 128 / W; i += 2) {
    const Words two = load_words<full>(p + i * W, bytes - i * W);
    visit(i, e4m3_over_256<may_be_nan>(high_bytes_from_low(two)));
    visit(i + 1, e4m3_over_256<may_be_nan>(two));
  }
}

// 128 codes over 256. Whether one is NaN is asked for all of them at once: half of the conversion is
// about a code that hardly ever comes.
template <bool full, class Visit>
HR_INLINE void visit_e4m3(const uint8_t *p, int bytes, Visit &&visit) {
  bool nan = false;
  for (int i = 0; i < 128; i += 4 * W) nan |= any_e4m3_nan<full>(p + i, bytes - i);
  if (nan)
    visit_e4m3_words<full, true>(p, bytes, visit);
  else
    visit_e4m3_words<full, false>(p, bytes, visit);
}

}  // namespace headrace::HEADRACE_TIER
