#define HEADRACE_TIER portable
#include "vec_portable.h"

#include "e4m3_words.h"

#include "tier_table.h"

namespace headrace {

const Tier *portable_tier() {
  static const Tier tier = portable::table();
  return &tier;
}

}  // namespace headrace
