// e4m3 with one float32 scale per 128 x 128.
#pragma once

namespace headrace::HEADRACE_TIER {

struct Fp8Block {
  struct Row {
    const uint8_t *codes, *scales;
  };
  static constexpr bool scaled = true, global = false;
  // Sixteen vectors make two sums: one would be long to wait for.
  static constexpr int chunk = FP8_BLOCK, parts = chunk / W, shares = W == 8 ? 2 : 1;
  static constexpr int code_bytes = chunk, scale_bytes = 4;
  static HR_INLINE Row row(const Matrix &m, int64_t r) {
    return {m.weight + r * m.row_bytes, m.scale + r / FP8_BLOCK * m.scale_row_bytes};
  }
  static constexpr int place(int i) { return e4m3_place(i); }
  template <bool full, class Part, class Close>
  static HR_INLINE void visit(const Row &row, int64_t c, int valid, Part &&part, Close &&close) {
    float scale;
    std::memcpy(&scale, row.scales + c * 4, 4);
    const F32 by = broadcast(scale * 256.0f);
    visit_e4m3<full>(row.codes + c * chunk, valid, [&](int p, F32 w) {
      part(p, w);
      if ((p + 1) % (parts / shares) == 0) close(by);
    });
  }
};

}  // namespace headrace::HEADRACE_TIER
