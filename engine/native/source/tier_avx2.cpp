#define HEADRACE_TIER avx2
#include "vec_avx2.h"

#include "tier_table.h"

namespace headrace {

const Tier *avx2_tier() {
  static const Tier tier = avx2::table();
  return &tier;
}

}  // namespace headrace
