#define HEADRACE_TIER avx2
#include "vec_avx2.h"

#include "tier_table.h"

#include "digits_avx2.h"

namespace headrace {

const Tier *avx2_tier() {
  static const Tier tier = [] {
    Tier t = avx2::table();
    t.rounding[static_cast<int>(Format::nvfp4)] = avx2::digit_kernel<avx2::Nvfp4Digits>();
    t.rounding[static_cast<int>(Format::mxfp4)] = avx2::digit_kernel<avx2::Mxfp4Digits>();
    return t;
  }();
  return &tier;
}

}  // namespace headrace
