#define HEADRACE_TIER avx512
#include "vec_avx512.h"

#include "e4m3_words.h"

#include "tier_table.h"

namespace headrace {

const Tier *avx512_tier() {
  static const Tier tier = avx512::table();
  return &tier;
}

}  // namespace headrace
