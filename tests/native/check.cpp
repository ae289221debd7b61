// Drives the C interface on heap blocks of exactly the right size, so that a sanitizer sees every
// byte too far and every race. Compares batches, threads and instruction sets with each other,
// products with sums in double, and every code of every format with the portable decoding of it.
// With the argument `quick` matrices are smaller, for emulated machines.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../../engine/native/source/headrace_native.h"

namespace {

std::mt19937 random_bits(7);

// Memory that ends where the last byte does.
struct Bytes {
  explicit Bytes(size_t size) : data(static_cast<uint8_t *>(std::malloc(size ? size : 1))) {
    for (size_t i = 0; i < size; ++i) data[i] = static_cast<uint8_t>(random_bits() % 0x70);
  }
  ~Bytes() { std::free(data); }
  Bytes(const Bytes &) = delete;
  float *floats() { return reinterpret_cast<float *>(data); }
  uint8_t *data;
};

void fill(float *values, size_t count) {
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < count; ++i) values[i] = normal(random_bits);
}

void store_bfloat16(uint8_t *data, float value) {
  std::memcpy(data, reinterpret_cast<const uint8_t *>(&value) + 2, 2);
}

void fill_bfloat16(uint8_t *data, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    float value;
    fill(&value, 1);
    store_bfloat16(data + i * 2, value);
  }
}

// Activations of a type: float32, or bfloat16 that are what `floats` become.
struct Activations {
  Activations(int32_t type, float *floats, size_t count) : at(count * (type ? 2 : 4)), item(type ? 2 : 4) {
    for (size_t i = 0; i < count; ++i) {
      uint32_t bits;
      std::memcpy(&bits, floats + i, 4);
      if (type) bits &= 0xFFFF0000;
      std::memcpy(floats + i, &bits, 4);
      std::memcpy(at.data + i * item, reinterpret_cast<const uint8_t *>(&bits) + 4 - item, item);
    }
  }
  const uint8_t *from(size_t number) const { return at.data + number * item; }
  Bytes at;
  size_t item;
};

// Where random bytes would be numbers so large that a layer overflows.
void fill_weight(int32_t format, uint8_t *data, size_t bytes) {
  if (format == 0) fill(reinterpret_cast<float *>(data), bytes / 4);
  if (format == 1) fill_bfloat16(data, bytes / 2);
  if (format == 2)
    for (size_t i = 1; i < bytes; i += 2) data[i] &= 0xBF;  // float16 below 2
}
void fill_scale(int32_t format, uint8_t *data, size_t bytes) {
  if (format == 3) fill(reinterpret_cast<float *>(data), bytes / 4);
}

void require(bool condition, const char *what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// Results of the first instruction set, in order. The others have to agree: to the bit where they
// decode, and as far as another order of summation lets them where they add.
std::vector<std::vector<float>> results;
size_t result = 0;

void agree(const float *values, size_t count, double tolerance, const char *what) {
  if (headrace_tier() == 0) {
    results.emplace_back(values, values + count);
    return;
  }
  const std::vector<float> &first = results.at(result++);
  double greatest = 0;
  for (const float value : first)
    if (std::fabs(value) > greatest) greatest = std::fabs(value);
  for (size_t i = 0; i < count; ++i) {
    const bool equal = values[i] == first[i] || (std::isnan(values[i]) && std::isnan(first[i]));
    require(equal || std::fabs(values[i] - first[i]) <= tolerance * greatest, what);
  }
}
constexpr double EXACT = 0, SUMS = 1e-4;

struct Shape {
  int32_t format;
  size_t row_bytes, scale_bytes;
};

constexpr int32_t FORMATS = 11;

size_t group(int32_t format) { return format < 4 ? 1 : format == 4 ? 16 : format < 9 ? 32 : 256; }

Shape shape(int32_t format, size_t rows, size_t columns) {
  switch (format) {
    case 0:
      return {0, columns * 4, 0};
    case 3:
      return {3, columns, (rows + 127) / 128 * ((columns + 127) / 128) * 4};
    case 4:
      return {4, columns / 2, rows * columns / 16};
    case 5:
      return {5, columns / 2, rows * columns / 32};
    case 6:
      return {6, columns / 32 * 34, 0};
    case 7:
      return {7, columns / 32 * 18, 0};
    case 8:
      return {8, columns / 32 * 20, 0};
    case 9:
      return {9, columns / 256 * 144, 0};
    case 10:
      return {10, columns / 256 * 210, 0};
    default:
      return {format, columns * 2, 0};
  }
}

void products(int32_t format, size_t rows, size_t columns, size_t tokens, int32_t type = 0) {
  const Shape s = shape(format, rows, columns);
  Bytes weight(rows * s.row_bytes), scale(s.scale_bytes), global(4);
  fill_weight(format, weight.data, rows * s.row_bytes);
  fill_scale(format, scale.data, s.scale_bytes);
  global.floats()[0] = 0.5f;
  // A row of a prompt is compared with that of a shorter prompt.
  const size_t company = tokens > 16 ? 17 : 1;
  Bytes x(tokens * columns * 4), bias(rows * 4), y(tokens * rows * 4), one(company * rows * 4);
  fill(x.floats(), tokens * columns);
  const Activations activations(type, x.floats(), tokens * columns);
  fill(bias.floats(), rows);
  const auto call = [&](size_t token, size_t count, float *to) {
    const headrace_matrix matrix = {static_cast<int64_t>(rows), static_cast<int64_t>(columns),
                                    weight.data, scale.data, global.data, bias.floats(), format};
    return headrace_products(&matrix, 1, activations.from(token * columns), type,
                             static_cast<int64_t>(count), to);
  };
  require(call(0, tokens, y.floats()) == 0, "a product");
  for (size_t t = 0; t + company <= tokens; t += 5) {
    require(call(t, company, one.floats()) == 0, "a row");
    require(!std::memcmp(one.data, y.floats() + t * rows, rows * 4), "a row equals its batch");
  }
  Bytes plain(rows * columns * 4);
  require(headrace_decode(format, static_cast<int64_t>(rows), static_cast<int64_t>(columns),
                          weight.data, scale.data, global.data, 0, static_cast<int64_t>(rows),
                          plain.floats()) == 0,
          "decoding");
  for (size_t t = 0; t < tokens; ++t)
    for (size_t r = 0; r < rows; ++r) {
      double sum = bias.floats()[r], bound = std::fabs(sum);
      for (size_t c = 0; c < columns; ++c) {
        const double term = static_cast<double>(plain.floats()[r * columns + c]) *
                            x.floats()[t * columns + c];
        sum += term;
        bound += std::fabs(term);
      }
      // Tiles hold some of GGUF's weights to 2^-17.
      const double limit = type && format >= 6 ? 1e-5 : 1e-6;
      require(std::fabs(y.floats()[t * rows + r] - sum) <= limit * bound, "a product's accuracy");
    }
  agree(plain.floats(), rows * columns, EXACT, "decoding is the same everywhere");
}

// Activations that come as bfloat16: some tiers round what is far below the largest of eight. Of the
// tokens the second has outliers, the third zeros, the fourth very small numbers, the fifth an
// infinity, the sixth large numbers.
void rounding_products(int32_t format, size_t rows, size_t columns, size_t tokens) {
  const Shape s = shape(format, rows, columns);
  Bytes weight(rows * s.row_bytes), scale(s.scale_bytes), global(4), plain(rows * columns * 4);
  fill_weight(format, weight.data, rows * s.row_bytes);
  fill_scale(format, scale.data, s.scale_bytes);
  // Of MXFP4 usual ones and far smaller ones, none so small that a tier takes it for zero.
  for (size_t i = 0; format == 5 && i < s.scale_bytes; ++i)
    scale.data[i] = static_cast<uint8_t>(scale.data[i] % 8 ? 100 + scale.data[i] % 32 : 40);
  global.floats()[0] = 0.5f;
  Bytes x(tokens * columns * 2), wide(tokens * columns * 4), y(tokens * rows * 4), one(rows * 4);
  std::memset(wide.data, 0, tokens * columns * 4);
  for (size_t i = 0; i < tokens * columns; ++i) {
    const size_t token = i / columns, column = i % columns;
    float value;
    fill(&value, 1);
    if (token == 1 && column % 19 == 0) value *= 1000;
    if (token == 2 && column < columns / 2) value = 0;
    if (token == 3 && column % 24 < 8) value *= 1e-30f;
    if (token == 4 && column == columns / 2) value = INFINITY;
    if (token == 5) value *= 1e25f;
    store_bfloat16(x.data + i * 2, value);
    std::memcpy(wide.data + i * 4 + 2, x.data + i * 2, 2);
  }
  const auto call = [&](const uint8_t *from, size_t count, float *to) {
    const headrace_matrix matrix = {static_cast<int64_t>(rows), static_cast<int64_t>(columns),
                                    weight.data, scale.data, global.data, nullptr, format};
    return headrace_products(&matrix, 1, from, 1, static_cast<int64_t>(count), to);
  };
  require(call(x.data, tokens, y.floats()) == 0, "a product");
  for (size_t t = 0; t < tokens; ++t) {
    require(call(x.data + t * columns * 2, 1, one.floats()) == 0, "a row");
    // What is no number may have either sign.
    if (t != 4)
      require(!std::memcmp(one.data, y.floats() + t * rows, rows * 4), "a row equals its batch");
  }
  require(headrace_decode(format, static_cast<int64_t>(rows), static_cast<int64_t>(columns),
                          weight.data, scale.data, global.data, 0, static_cast<int64_t>(rows),
                          plain.floats()) == 0,
          "decoding");
  for (size_t t = 0; t < tokens; ++t)
    for (size_t r = 0; r < rows; ++r) {
      double sum = 0, bound = 1e-30;
      for (size_t c = 0; c < columns; ++c) {
        const double w = plain.floats()[r * columns + c];
        const float *eight = wide.floats() + t * columns + c / 8 * 8;
        double greatest = 0;
        for (size_t i = 0; i < 8 && c / 8 * 8 + i < columns; ++i)
          if (std::fabs(eight[i]) > greatest) greatest = std::fabs(eight[i]);
        sum += w * eight[c % 8];
        bound += std::fabs(w) * (1e-6 * std::fabs(eight[c % 8]) + std::ldexp(greatest, -17));
      }
      const float got = y.floats()[t * rows + r];
      if (t == 4)
        require(std::isfinite(sum) || (std::isnan(sum) ? std::isnan(got) : got == sum),
                "a product with an infinity");
      else
        require(std::fabs(got - sum) <= bound, "the accuracy of a rounding product");
    }
}

// Every code and scale of a byte or two, those that are no numbers too.
void every_code(int32_t format) {
  constexpr size_t ROWS = 256, COLUMNS = 256;
  const Shape s = shape(format, ROWS, COLUMNS);
  const size_t bytes = ROWS * s.row_bytes;
  Bytes weight(bytes), scale(s.scale_bytes), global(4), plain(ROWS * COLUMNS * 4);
  for (size_t i = 0; i < bytes; ++i)
    weight.data[i] = static_cast<uint8_t>(s.row_bytes == COLUMNS * 2 ? i / 2 >> i % 2 * 8
                                                                     : random_bits());
  for (size_t i = 0; i < s.scale_bytes; ++i) scale.data[i] = static_cast<uint8_t>(i);
  fill_scale(format, scale.data, s.scale_bytes);
  global.floats()[0] = 0.5f;
  require(headrace_decode(format, ROWS, COLUMNS, weight.data, scale.data, global.data, 0, ROWS,
                          plain.floats()) == 0,
          "decoding codes");
  agree(plain.floats(), ROWS * COLUMNS, EXACT, "each code is the same everywhere");
}

void layer_step(int32_t format, size_t hidden, size_t inner, size_t tokens, size_t width,
                int32_t type = 0) {
  const Shape up = shape(format, inner, hidden), down = shape(format, hidden, inner);
  headrace_expert_layout l{};
  l.hidden = static_cast<int64_t>(hidden);
  l.intermediate = static_cast<int64_t>(inner);
  l.gate_up_format = l.down_format = format;
  size_t end = 0;
  const auto part = [&end](size_t bytes) {
    const size_t at = (end + 15) / 16 * 16;
    end = at + bytes;
    return static_cast<int64_t>(at);
  };
  l.gate_up_weight = part(2 * inner * up.row_bytes);
  l.gate_up_scale = up.scale_bytes ? part(2 * up.scale_bytes) : -1;
  l.down_weight = part(hidden * down.row_bytes);
  l.down_scale = down.scale_bytes ? part(down.scale_bytes) : -1;
  const size_t item = format % 2 ? 2 : 4;
  l.bias_type = format % 2 ? HEADRACE_X_BFLOAT16 : HEADRACE_X_FLOAT32;
  l.gate_up_bias = width % 2 ? part(2 * inner * item) : -1;
  l.down_bias = width % 2 ? part(hidden * item) : -1;
  l.gate_up_scale_2 = format == 4 ? part(8) : -1;
  l.down_scale_2 = format == 4 ? part(4) : -1;
  l.stride = static_cast<int64_t>((end + 63) / 64 * 64);
  constexpr size_t EXPERTS = 4;
  Bytes bank(static_cast<size_t>(l.stride) * (EXPERTS - 1) + end);
  Bytes x(tokens * hidden * 4), rows(tokens * width * hidden * 4), again(tokens * width * hidden * 4);
  fill(x.floats(), tokens * hidden);
  const Activations activations(type, x.floats(), tokens * hidden);
  std::memset(rows.data, 0, tokens * width * hidden * 4);
  std::memset(again.data, 0, tokens * width * hidden * 4);
  for (size_t i = 0; i < EXPERTS; ++i) {
    uint8_t *blob = bank.data + i * static_cast<size_t>(l.stride);
    const auto biases = [&](int64_t at, size_t count) {
      if (at < 0) return;
      if (format % 2)
        fill_bfloat16(blob + at, count);
      else
        fill(reinterpret_cast<float *>(blob + at), count);
    };
    fill_weight(format, blob + l.gate_up_weight, 2 * inner * up.row_bytes);
    fill_weight(format, blob + l.down_weight, hidden * down.row_bytes);
    if (up.scale_bytes) fill_scale(format, blob + l.gate_up_scale, 2 * up.scale_bytes);
    if (down.scale_bytes) fill_scale(format, blob + l.down_scale, down.scale_bytes);
    biases(l.gate_up_bias, 2 * inner);
    biases(l.down_bias, hidden);
    if (format == 4) fill(reinterpret_cast<float *>(blob + l.gate_up_scale_2), 2);
    if (format == 4) fill(reinterpret_cast<float *>(blob + l.down_scale_2), 1);
  }
  std::vector<int64_t> slots(tokens * width);
  for (int64_t &slot : slots) slot = static_cast<int64_t>(random_bits() % (EXPERTS + 1)) - 1;
  for (int threads : {1, 3}) {
    headrace_set_threads(threads);
    float *out = threads == 1 ? rows.floats() : again.floats();
    require(headrace_moe_rows(&l, bank.data, EXPERTS, activations.from(0), type,
                              static_cast<int64_t>(tokens), static_cast<int64_t>(width), slots.data(), format % 3, out) == 0,
            "a layer step");
  }
  const size_t count = tokens * width * hidden;
  require(!std::memcmp(rows.data, again.data, count * 4), "a layer step by threads");
  agree(rows.floats(), count, SUMS, "a layer step is the same everywhere");
  headrace_set_threads(1);
}

// Gate, up and down of a feed-forward, and gate and up side by side.
void feed_forward(int32_t format, size_t hidden, size_t inner, size_t tokens, int32_t type) {
  const Shape up = shape(format, inner, hidden), down = shape(format, hidden, inner);
  Bytes gates(inner * up.row_bytes), ups(inner * up.row_bytes), downs(hidden * down.row_bytes);
  Bytes scale(up.scale_bytes), down_scale(down.scale_bytes), global(4), bias(inner * 4);
  Bytes x(tokens * hidden * 4), y(tokens * hidden * 4), again(tokens * hidden * 4);
  Bytes both(2 * tokens * inner * 4);
  fill_weight(format, gates.data, inner * up.row_bytes);
  fill_weight(format, ups.data, inner * up.row_bytes);
  fill_weight(format, downs.data, hidden * down.row_bytes);
  fill_scale(format, scale.data, up.scale_bytes);
  fill_scale(format, down_scale.data, down.scale_bytes);
  global.floats()[0] = 0.5f;
  fill(x.floats(), tokens * hidden);
  const Activations activations(type, x.floats(), tokens * hidden);
  fill(bias.floats(), inner);
  const int64_t h = static_cast<int64_t>(hidden), i = static_cast<int64_t>(inner);
  const headrace_matrix matrices[] = {
      {i, h, gates.data, scale.data, global.data, bias.floats(), format},
      {i, h, ups.data, scale.data, global.data, nullptr, format},
      {h, i, downs.data, down_scale.data, global.data, nullptr, format}};
  const int64_t count = static_cast<int64_t>(tokens);
  for (int threads : {1, 3}) {
    headrace_set_threads(threads);
    float *out = threads == 1 ? y.floats() : again.floats();
    require(headrace_mlp(matrices, 0, activations.from(0), type, count, out) == 0, "a feed-forward");
    require(headrace_products(matrices, 2, activations.from(0), type, count, both.floats()) == 0,
            "two");
  }
  require(!std::memcmp(y.data, again.data, tokens * hidden * 4), "a feed-forward by threads");
  agree(y.floats(), tokens * hidden, SUMS, "a feed-forward is the same everywhere");
  agree(both.floats(), 2 * tokens * inner, SUMS, "two products are the same everywhere");
  headrace_set_threads(1);
}

void attend(int32_t type, size_t dim, size_t group, int64_t context, int64_t length) {
  constexpr size_t PAGES = 50, PAGE_TOKENS = 16, KV_HEADS = 2;
  const size_t size = type == 0 ? 4 : 2, heads = KV_HEADS * group, page = PAGE_TOKENS * KV_HEADS;
  Bytes keys(PAGES * page * dim * size), values(PAGES * page * dim * size);
  fill_weight(type, keys.data, PAGES * page * dim * size);
  fill_weight(type, values.data, PAGES * page * dim * size);
  const size_t rows = static_cast<size_t>(length) + 1, numbers = rows * heads * dim;
  Bytes q(numbers * size), out(numbers * 4), again(numbers * 4);
  fill_weight(type, q.data, numbers * size);
  const size_t used = (static_cast<size_t>(context + length) + PAGE_TOKENS - 1) / PAGE_TOKENS;
  std::vector<int64_t> table(used);
  for (size_t i = 0; i < used; ++i) table[i] = static_cast<int64_t>(i * 7 % PAGES);
  const headrace_attention_layout layout = {
      static_cast<int64_t>(heads), KV_HEADS, static_cast<int64_t>(dim), PAGES, PAGE_TOKENS,
      static_cast<int64_t>(page * dim), static_cast<int64_t>(KV_HEADS * dim), keys.data,
      values.data, type, 0.125f};
  const headrace_sequence sequences[] = {
      {0, length, context, static_cast<int64_t>(used), table.data()}, {length, 1, 0, 1, table.data()}};
  for (int threads : {1, 3}) {
    headrace_set_threads(threads);
    float *to = threads == 1 ? out.floats() : again.floats();
    require(headrace_attention(&layout, sequences, 2, q.data, to) == 0, "attention");
  }
  require(!std::memcmp(out.data, again.data, numbers * 4), "attention by threads");
  agree(out.floats(), numbers, SUMS, "attention is the same everywhere");
  table[0] = PAGES;
  require(headrace_attention(&layout, sequences, 2, q.data, out.floats()) != 0, "a page too far");
  headrace_set_threads(1);
}

void norm_and_rotate(int64_t rows) {
  const size_t count = static_cast<size_t>(rows);
  Bytes x(count * 132), weight(132), sum(count * 132), out(count * 132);
  fill(x.floats(), count * 33);
  fill(weight.floats(), 33);
  require(headrace_rms_norm(x.floats(), x.floats(), weight.floats(), 1e-5f, rows, 33, sum.floats(),
                            out.floats()) == 0,
          "a norm");
  agree(out.floats(), count * 33, SUMS, "a norm is the same everywhere");
  Bytes q(count * 192), k(count * 96), v(count * 96), turned(count * 192), angles(count * 16);
  Bytes keys(4 * 2 * 96), values(4 * 2 * 96);
  fill(q.floats(), count * 48);
  fill(k.floats(), count * 24);
  fill(angles.floats(), count * 4);
  std::vector<int64_t> pages(count, 3), offsets(count, 1);
  const headrace_attention_layout layout = {6, 3, 8, 4, 2, 48, 24, keys.data, values.data, 0, 1.0f};
  const headrace_rotation rotation = {rows, 4, q.floats(), k.floats(), v.floats(), angles.floats(),
                                      angles.floats(), pages.data(), offsets.data(),
                                      turned.floats()};
  require(headrace_rotate_and_store(&layout, &rotation) == 0, "a rotation");
  agree(turned.floats(), count * 48, SUMS, "a rotation is the same everywhere");
  pages[0] = 4;
  require(headrace_rotate_and_store(&layout, &rotation) != 0, "a rotation to a page too far");
}

void route_and_add(int64_t tokens, int32_t type) {
  constexpr int64_t EXPERTS = 12, HIDDEN = 40, WIDTH = 3;
  const size_t count = static_cast<size_t>(tokens), numbers = count * HIDDEN;
  Bytes x(numbers * 4), router(EXPERTS * HIDDEN * 4), weights(count * WIDTH * 4), sum(numbers * 4);
  Bytes rows(numbers * WIDTH * 4), gates(count * 4);
  fill(x.floats(), numbers);
  fill(router.floats(), EXPERTS * HIDDEN);
  fill(rows.floats(), numbers * WIDTH);
  fill(gates.floats(), count);
  const Activations activations(type, x.floats(), numbers);
  for (int threads : {1, 3}) {
    headrace_set_threads(threads);
    std::vector<int64_t> ids(count * WIDTH, -1);
    require(headrace_route(router.floats(), EXPERTS, HIDDEN, activations.from(0), type, tokens, WIDTH, 1,
                           ids.data(), weights.floats()) == 0,
            "routing");
    for (int64_t id : ids) require(id >= 0 && id < EXPERTS, "an expert that there is");
    require(headrace_moe_combine(rows.floats(), weights.floats(), tokens, WIDTH, HIDDEN,
                                 sum.floats()) == 0,
            "a sum of routes");
    require(headrace_add_gated(sum.floats(), x.floats(), gates.floats(), tokens, HIDDEN) == 0,
            "a gated sum");
  }
  agree(weights.floats(), count * WIDTH, SUMS, "weights of routes are the same everywhere");
  agree(sum.floats(), numbers, SUMS, "sums of routes are the same everywhere");
  require(headrace_route(router.floats(), EXPERTS, HIDDEN, x.data, 0, tokens, EXPERTS + 1, 1, nullptr,
                         nullptr) != 0,
          "more experts than there are");
  headrace_set_threads(1);
}

void attend_in_one(int64_t tokens) {
  constexpr int64_t HIDDEN = 48, HEADS = 2, DIM = 32, PAGES = 5, PAGE_TOKENS = 16;
  const size_t count = static_cast<size_t>(tokens), page = PAGE_TOKENS * DIM;
  Bytes q(HEADS * DIM * HIDDEN * 4), k(DIM * HIDDEN * 4), v(DIM * HIDDEN * 4), o(HEADS * DIM * HIDDEN * 4);
  Bytes x(count * HIDDEN * 4), y(count * HIDDEN * 4), angles(count * DIM * 2);
  Bytes keys(PAGES * page * 4), values(PAGES * page * 4);
  for (Bytes *each : {&q, &o}) fill(each->floats(), HEADS * DIM * HIDDEN);
  for (Bytes *each : {&k, &v}) fill(each->floats(), DIM * HIDDEN);
  fill(x.floats(), count * HIDDEN);
  fill(angles.floats(), count * DIM / 2);
  std::vector<int64_t> table = {3, 0, 4}, pages, offsets;
  for (int64_t t = 0; t < tokens; ++t) {
    pages.push_back(table[static_cast<size_t>(t / PAGE_TOKENS)]);
    offsets.push_back(t % PAGE_TOKENS);
  }
  const headrace_matrix qkv[] = {{HEADS * DIM, HIDDEN, q.data, nullptr, nullptr, nullptr, 0},
                                 {DIM, HIDDEN, k.data, nullptr, nullptr, nullptr, 0},
                                 {DIM, HIDDEN, v.data, nullptr, nullptr, nullptr, 0}};
  const headrace_matrix output = {HIDDEN, HEADS * DIM, o.data, nullptr, nullptr, nullptr, 0};
  const headrace_attention_layout layout = {HEADS, 1, DIM, PAGES, PAGE_TOKENS, page, DIM, keys.data,
                                            values.data, 0, 0.125f};
  const headrace_rotation rotation = {tokens, DIM / 2, nullptr, nullptr, nullptr, angles.floats(),
                                      angles.floats(), pages.data(), offsets.data(), nullptr};
  headrace_sequence sequence = {0, tokens, 0, 3, table.data()};
  for (int threads : {1, 3}) {
    headrace_set_threads(threads);
    require(headrace_attention_block(qkv, &output, &layout, &rotation, &sequence, 1, x.floats(),
                                     y.floats()) == 0,
            "attention in one");
  }
  agree(y.floats(), count * HIDDEN, SUMS, "attention in one is the same everywhere");
  sequence.start = 1;
  require(headrace_attention_block(qkv, &output, &layout, &rotation, &sequence, 1, x.floats(),
                                   y.floats()) != 0,
          "a row too far");
  headrace_set_threads(1);
}

}  // namespace

int main(int count, char **arguments) {
  const bool quick = count > 1 && !std::strcmp(arguments[1], "quick");
  require(headrace_abi() == HEADRACE_NATIVE_ABI, "the interface's version");
  for (int32_t tier = 0; tier < headrace_tiers(); ++tier) {
    if (!headrace_tier_usable(tier)) continue;
    require(headrace_set_tier(tier) == tier, "choosing an instruction set");
    random_bits.seed(7);
    result = 0;
    for (int32_t format = 0; format < FORMATS; ++format) every_code(format);
    for (int32_t format = 0; format < FORMATS; ++format)
      for (int threads : {1, 3}) {
        if (quick && threads == 1) continue;
        headrace_set_threads(threads);
        for (size_t columns : {16, 48, 64, 128, 144, 256, 576, 768, 1040})
          if (columns % group(format) == 0)
            for (size_t tokens : {1, 3, 16, 19}) products(format, 37, columns, tokens);
        if (group(format) == 1)
          for (size_t columns : {1, 7, 33, 129, 255}) products(format, 131, columns, 6);
        products(format, quick ? 20 : 300, 512, 40);
        for (size_t tokens : {17, 50}) products(format, 37, 768, tokens, 1);
        for (size_t columns : {32, 128, 256, 416, 768})
          if (columns % group(format) == 0)
            for (size_t tokens : {6, 16}) rounding_products(format, 21, columns, tokens);
      }
    for (int32_t format = 0; format < FORMATS; ++format) {
      layer_step(format, 256, 256, 1, 2);
      if (group(format) > 32) continue;
      for (int32_t type : {0, 1}) layer_step(format, 576, quick ? 32 : 64, quick ? 30 : 70, 3, type);
      layer_step(format, 160, 288, quick ? 3 : 9, 4);
    }
    for (int32_t format = 0; format < FORMATS; ++format)
      for (size_t tokens : {1, 5, 40})
        for (int32_t type : {0, 1})
          if (group(format) <= 32) feed_forward(format, 96, 160, tokens, type);
    for (int32_t type : {0, 1}) {
      attend(type, 64, 3, 0, 37);
      attend(type, 32, 1, 700, 1);
      attend(type, 96, 2, 61, 3);
      attend(type, 256, 8, 100, 9);
    }
    norm_and_rotate(1);
    for (int32_t type : {0, 1}) route_and_add(50, type);
    for (int64_t tokens : {1, 40}) attend_in_one(tokens);
    std::printf("%s is in order\n", headrace_tier_name(tier));
    std::fflush(stdout);
  }
  // Callers of several threads, while the pool changes its size.
  headrace_set_threads(3);
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i)
    callers.emplace_back([i] {
      std::vector<float> w(200 * 256, 0.5f), x(256, 1.0f), y(200);
      for (int round = 0; round < 200; ++round) {
        if (round % 50 == 49) headrace_set_threads(1 + (round + i) % 4);
        const headrace_matrix matrix = {200, 256, w.data(), nullptr, nullptr, nullptr, 0};
        headrace_products(&matrix, 1, x.data(), 0, 1, y.data());
        if (y[199] != 128.0f) std::exit(2);
      }
    });
  for (std::thread &caller : callers) caller.join();
  headrace_set_threads(1);
  return 0;
}
