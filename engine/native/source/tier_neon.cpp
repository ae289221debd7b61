#define HEADRACE_TIER neon
#include "vec_neon.h"

#include "e4m3_words.h"

#include "tier_table.h"

namespace headrace {

const Tier *neon_tier() {
  static const Tier tier = neon::table();
  return &tier;
}

}  // namespace headrace
