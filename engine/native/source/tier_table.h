// Fills a tier's table. Included last by each tier's translation unit.
#pragma once

#include "tier.h"

#include "kernels.h"

#include "attention_kernel.h"

#include "formats/codes.h"

#include "formats/fp8_block.h"
#include "formats/gguf.h"
#include "formats/nvfp4.h"
#include "formats/mxfp4.h"
#include "formats/plain.h"

namespace headrace::HEADRACE_TIER {

inline Tier table() {
  Tier t{};
  t.kernels[static_cast<int>(Format::float32)] = kernel<Float32>();
  t.kernels[static_cast<int>(Format::bfloat16)] = kernel<BFloat16>();
  t.kernels[static_cast<int>(Format::float16)] = kernel<Float16>();
  t.kernels[static_cast<int>(Format::fp8_block)] = kernel<Fp8Block>();
  t.kernels[static_cast<int>(Format::nvfp4)] = kernel<Nvfp4>();
  t.kernels[static_cast<int>(Format::mxfp4)] = kernel<Mxfp4>();
  t.kernels[static_cast<int>(Format::q8_0)] = kernel<Q8_0>();
  t.kernels[static_cast<int>(Format::q4_0)] = kernel<Q4_0>();
  t.kernels[static_cast<int>(Format::q4_1)] = kernel<Q4_1>();
  t.kernels[static_cast<int>(Format::q4_k)] = kernel<Q4_K>();
  t.kernels[static_cast<int>(Format::q6_k)] = kernel<Q6_K>();
  t.glu = glu;
  t.read = read;
  t.attention = attention_kernel();
  return t;
}

}  // namespace headrace::HEADRACE_TIER
