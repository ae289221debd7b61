// Four lanes. Needs nothing beyond the base of aarch64.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "copy_first.h"
#include "inline.h"

namespace headrace::HEADRACE_TIER {

constexpr int W = 4;
constexpr int ROWS = 4;
constexpr int TOKENS = 2;

using F32 = float32x4_t;
using U32 = uint32x4_t;
using Words = uint16x4_t;  // a 16-bit number for each lane

HR_INLINE F32 zero() { return vdupq_n_f32(0.0f); }
HR_INLINE U32 zero_u32() { return vdupq_n_u32(0); }
HR_INLINE F32 broadcast(float v) { return vdupq_n_f32(v); }
HR_INLINE F32 load_f32(const float *p) { return vld1q_f32(p); }
HR_INLINE void store_f32(float *p, F32 v) { vst1q_f32(p, v); }
HR_INLINE F32 add(F32 a, F32 b) { return vaddq_f32(a, b); }
HR_INLINE F32 sub(F32 a, F32 b) { return vsubq_f32(a, b); }
HR_INLINE F32 mul(F32 a, F32 b) { return vmulq_f32(a, b); }
HR_INLINE F32 div(F32 a, F32 b) { return vdivq_f32(a, b); }
HR_INLINE F32 min(F32 a, F32 b) { return vminq_f32(a, b); }
HR_INLINE F32 max(F32 a, F32 b) { return vmaxq_f32(a, b); }
HR_INLINE F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }
HR_INLINE F32 nearest(F32 v) { return vrndnq_f32(v); }
HR_INLINE U32 add_u32(U32 a, U32 b) { return vaddq_u32(a, b); }
HR_INLINE uint64_t reduce_u32(U32 v) { return vaddvq_u32(v); }

// In two steps, so that neither power leaves the range of float32.
HR_INLINE F32 times_power_of_two(F32 v, F32 n) {
  const int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1);
  const int32x4_t bias = vdupq_n_s32(127), rest = vsubq_s32(whole, half);
  v = mul(v, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
  return mul(v, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23)));
}

HR_INLINE float greatest(F32 v) { return vmaxvq_f32(v); }
HR_INLINE float reduce(F32 v) {
  const float32x2_t s = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(vpadd_f32(s, s), 0);
}

template <bool full>
HR_INLINE uint8x16_t load_sixteen(const uint8_t *p, int bytes) {
  if constexpr (full) return vld1q_u8(p);
  uint8_t rest[16];
  copy_first<16>(rest, p, bytes);
  return vld1q_u8(rest);
}
template <bool full>
HR_INLINE uint8x8_t load_eight(const uint8_t *p, int bytes) {
  if constexpr (full) return vld1_u8(p);
  uint8_t rest[8];
  copy_first<8>(rest, p, bytes);
  return vld1_u8(rest);
}
template <bool full>
HR_INLINE F32 load_floats(const uint8_t *p, int count) {
  return vreinterpretq_f32_u8(load_sixteen<full>(p, count * 4));
}
template <bool full>
HR_INLINE U32 load_u32(const uint8_t *p, int bytes) {
  return vreinterpretq_u32_u8(load_sixteen<full>(p, bytes));
}
template <bool full>
HR_INLINE Words load_words(const uint8_t *p, int bytes) {
  return vreinterpret_u16_u8(load_eight<full>(p, bytes));
}

HR_INLINE Words high_bytes_from_low(Words v) { return vshl_n_u16(v, 8); }
HR_INLINE F32 bf16_even(U32 v) { return vreinterpretq_f32_u32(vshlq_n_u32(v, 16)); }
HR_INLINE F32 bf16_odd(U32 v) {
  return vreinterpretq_f32_u32(vandq_u32(v, vdupq_n_u32(0xFFFF0000u)));
}
HR_INLINE F32 f16(Words v) { return vcvt_f32_f16(vreinterpret_f16_u16(v)); }

// As in vec_avx512.h.
template <bool may_be_nan>
HR_INLINE F32 e4m3_over_256(Words v) {
  const Words halved = vreinterpret_u16_s16(vshr_n_s16(vreinterpret_s16_u16(v), 1));
  const Words bits = vand_u16(halved, vdup_n_u16(0xBF80));
  if constexpr (!may_be_nan) return f16(bits);
  const Words top = vdup_n_u16(0x3F80);
  return f16(vorr_u16(bits, vceq_u16(vand_u16(bits, top), top)));
}

template <bool full>
HR_INLINE bool any_e4m3_nan(const uint8_t *p, int bytes) {
  const uint8x16_t seven = vdupq_n_u8(0x7F);
  return vmaxvq_u8(vandq_u8(load_sixteen<full>(p, bytes), seven)) == 0x7F;
}

// --- 4-bit codes by table, as halves of bfloat16 numbers -----------------------------------------

// The high bytes of the bfloat16 numbers of sixteen codes, and the low ones.
struct Table {
  uint8x16_t high, low;
};
HR_INLINE uint8x16_t sixteen_bytes(uint64_t first, uint64_t second) {
  return vcombine_u8(vcreate_u8(first), vcreate_u8(second));
}

// Sixteen codes, in order.
struct Sixteen {
  F32 v[4];
};
HR_INLINE Sixteen look_up(uint8x16_t codes, Table table) {
  const uint8x16_t high = vqtbl1q_u8(table.high, codes), low = vqtbl1q_u8(table.low, codes);
  const uint16x8_t none = vdupq_n_u16(0);
  const uint16x8_t first = vreinterpretq_u16_u8(vzip1q_u8(low, high));
  const uint16x8_t second = vreinterpretq_u16_u8(vzip2q_u8(low, high));
  return {{vreinterpretq_f32_u16(vzip1q_u16(none, first)),
           vreinterpretq_f32_u16(vzip2q_u16(none, first)),
           vreinterpretq_f32_u16(vzip1q_u16(none, second)),
           vreinterpretq_f32_u16(vzip2q_u16(none, second))}};
}
HR_INLINE uint8x16_t low_nibbles(uint8x16_t bytes) { return vandq_u8(bytes, vdupq_n_u8(15)); }
HR_INLINE uint8x16_t high_nibbles(uint8x16_t bytes) { return vshrq_n_u8(bytes, 4); }

// --- e2m1: 64 bytes; of each four the low nibbles, then the high ones -----------------------------

constexpr int E2M1_CHUNK = 128, NVFP4_SCALES = 8, MXFP4_SCALES = 4;
template <int group>
constexpr int e2m1_place(int i) { return i / 8 * 8 + i % 2 * W + i % 8 / 2; }

template <int group, bool full, class Visit>
HR_INLINE void visit_e2m1(const uint8_t *p, int bytes, Visit &&visit) {
  const Table table = {sixteen_bytes(0x40404040'3F3F3F00, 0xC0C0C0C0'BFBFBF80),
                       sixteen_bytes(0xC0804000'C0800000, 0xC0804000'C0800000)};
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t codes = load_sixteen<full>(p + i * 16, bytes - i * 16);
    const Sixteen low = look_up(low_nibbles(codes), table);
    const Sixteen high = look_up(high_nibbles(codes), table);
    for (int j = 0; j < 4; ++j) {
      visit(i * 8 + j * 2, low.v[j]);
      visit(i * 8 + j * 2 + 1, high.v[j]);
    }
  }
}

HR_INLINE void broadcast_each(F32 v, F32 *out) {
  out[0] = vdupq_laneq_f32(v, 0);
  out[1] = vdupq_laneq_f32(v, 1);
  out[2] = vdupq_laneq_f32(v, 2);
  out[3] = vdupq_laneq_f32(v, 3);
}

template <bool full>
HR_INLINE void nvfp4_scales_over_256(const uint8_t *p, int bytes, F32 *out) {
  const uint16x8_t codes = vshll_n_u8(load_eight<full>(p, bytes), 8);
  broadcast_each(e4m3_over_256<true>(vget_low_u16(codes)), out);
  broadcast_each(e4m3_over_256<true>(vget_high_u16(codes)), out + 4);
}

// Powers of two. Code 0 is a float32 subnormal, 255 is NaN.
template <bool full>
HR_INLINE void mxfp4_scales(const uint8_t *p, int bytes, F32 *out) {
  uint32_t raw = 0;
  std::memcpy(&raw, p, full ? 4 : static_cast<size_t>(bytes));
  const U32 codes = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(raw))));
  const U32 half = vdupq_n_u32(0x00400000);
  const U32 nan = vandq_u32(vceqq_u32(codes, vdupq_n_u32(255)), half);
  const U32 bits = vorrq_u32(vmaxq_u32(vshlq_n_u32(codes, 23), half), nan);
  broadcast_each(vreinterpretq_f32_u32(bits), out);
}

HR_INLINE float half(const uint8_t *p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return vgetq_lane_f32(f16(vdup_n_u16(bits)), 0);
}
HR_INLINE U32 widen(const uint8_t *p) {
  uint32_t raw;
  std::memcpy(&raw, p, 4);
  return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(raw))));
}
HR_INLINE U32 widen_signed(const uint8_t *p) {
  uint32_t raw;
  std::memcpy(&raw, p, 4);
  return vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(raw)))));
}
// Bytes i .. i + W of these words.
HR_INLINE U32 widen_bytes(const uint64_t *words, int i) {
  return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(words[i / 8] >> i % 8 * 8))));
}
HR_INLINE F32 to_f32(U32 v) { return vcvtq_f32_s32(vreinterpretq_s32_u32(v)); }

// --- 4-bit codes from 0 with a scale and a minimum -----------------------------------------------

// Four lanes of one number and four of the other in turns; the vector from lane i on.
HR_INLINE F32 four_each(float first, float second, int i) {
  return broadcast(i / 4 % 2 ? second : first);
}

// The first four of `words` as float16, every other one times `odd`.
template <int odd>
HR_INLINE void store_halves(uint64_t words, float *out) {
  const float by[4] = {1.0f, odd, 1.0f, odd};
  vst1q_f32(out, vmulq_f32(f16(vcreate_u16(words)), vld1q_f32(by)));
}

// As in vec_avx512.h.
constexpr int nibble_place(int byte) { return byte; }

template <bool by_run, int stride, class Visit>
HR_INLINE void visit_nibbles(const uint8_t *a, const uint8_t *b, const float *scales,
                             const float *minima, Visit &&visit) {
  const Table table = {sixteen_bytes(0x40404040'40403F00, 0x41414141'41414141),
                       sixteen_bytes(0xE0C0A080'40008000, 0x70605040'30201000)};
  const uint8x16_t runs[2] = {vld1q_u8(a), vld1q_u8(b)};
  for (int nibble = 0; nibble < 2; ++nibble)
    for (int run = 0; run < 2; ++run) {
      const int at = (by_run ? run : nibble) * stride;
      const F32 scale = broadcast(scales[at]), least = broadcast(minima[at]);
      const Sixteen codes =
          look_up(nibble ? high_nibbles(runs[run]) : low_nibbles(runs[run]), table);
      for (int i = 0; i < 4; ++i)
        visit(nibble * 8 + run * 4 + i, fma(scale, codes.v[i], least));
    }
}

}  // namespace headrace::HEADRACE_TIER
