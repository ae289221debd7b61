// One layer step of routed experts, in three phases: arrange the activations, gate and up with
// their activation, down. Every expert's weights are read once for all tokens routed to it.
//
// The tasks of a step of few tokens are backed up: threads that are late may read a step's memory
// and its bank when the step is over, and nothing else that the caller owns.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "engine.h"

namespace headrace {

namespace {

constexpr int64_t TOKEN_BLOCK = 128;
constexpr int64_t TILE = 32, PROMPT_TILE = 128;  // rows
constexpr int64_t ARRANGED_AT_ONCE = 8;

// What the products of so many tokens with an expert take.
struct Form {
  Arrangement gate_up, down;
  float *x;  // [tokens, gate_up.size]
};

struct Group {
  int64_t slot, begin, end;  // its routes in Step::routes
  const Form *form;

  int64_t tokens() const { return end - begin; }
};

struct Tile {
  const Group &group;
  int64_t row, count;
};

struct Step {
  Engine &engine;
  const Tier &tier;
  const headrace_expert_layout layout;
  const uint8_t *bank;
  const void *x;
  int32_t x_type;
  int64_t tokens, width;
  int32_t activation;
  float *rows;
  Form forms[2];  // of a few tokens, of many
  int64_t tile, inner_tiles, hidden_tiles;
  int64_t inner_size = 0, scratch_bytes = 0;
  std::vector<int64_t> routes = {};  // token * width + route, grouped by slot
  std::vector<Group> groups = {};
  std::vector<const Form *> arranged = {};  // those that there are groups of
  bool backed_up = false;
  float *inner = nullptr;

  int64_t inputs() const { return divide_up(tokens, ARRANGED_AT_ONCE); }
  // Of a thread, behind what kernels need: [TOKEN_BLOCK][tile] twice.
  float *results(int thread) const {
    return engine.scratch[static_cast<size_t>(thread)].floats() + scratch_bytes / 4;
  }
  float *inner_row(int64_t place) const { return inner + place * inner_size; }
  float *row(int64_t place) const {
    return rows + routes[static_cast<size_t>(place)] * layout.hidden;
  }
};

// What a task of gate and up, or of down, computes.
Tile inner_tile(const Step &s, int64_t task) {
  const int64_t row = task % s.inner_tiles * s.tile;
  return {s.groups[static_cast<size_t>(task / s.inner_tiles)], row,
          std::min(s.tile, s.layout.intermediate - row)};
}
Tile hidden_tile(const Step &s, int64_t task) {
  const int64_t row = task % s.hidden_tiles * s.tile;
  return {s.groups[static_cast<size_t>(task / s.hidden_tiles)], row,
          std::min(s.tile, s.layout.hidden - row)};
}

const uint8_t *at(const uint8_t *blob, int64_t offset) {
  return offset < 0 ? nullptr : blob + offset;
}

struct Bias {
  const uint8_t *numbers = nullptr;  // NULL: there is none
  int32_t type = HEADRACE_X_FLOAT32;

  // out[i] += number first + i
  void add(int64_t first, int64_t count, float *out) const {
    if (numbers == nullptr) return;
    for (int64_t i = 0; i < count; ++i) {
      float value;
      if (type == HEADRACE_X_FLOAT32) {
        std::memcpy(&value, numbers + (first + i) * 4, 4);
      } else {
        uint16_t half;
        std::memcpy(&half, numbers + (first + i) * 2, 2);
        const uint32_t bits = static_cast<uint32_t>(half) << 16;
        std::memcpy(&value, &bits, 4);
      }
      out[i] += value;
    }
  }
};

struct Expert {
  Matrix gate, up, down;
  Bias gate_up_bias, down_bias;
};

bool read_expert(const headrace_expert_layout &l, const uint8_t *blob, Expert &e) {
  const Format format = static_cast<Format>(l.gate_up_format);
  if (l.bias_type != HEADRACE_X_FLOAT32 && l.bias_type != HEADRACE_X_BFLOAT16) return false;
  e.gate_up_bias = {at(blob, l.gate_up_bias), l.bias_type};
  e.down_bias = {at(blob, l.down_bias), l.bias_type};
  const uint8_t *globals = at(blob, l.gate_up_scale_2);
  if (!describe(format, l.intermediate, l.hidden, at(blob, l.gate_up_weight),
                at(blob, l.gate_up_scale), globals, e.gate))
    return false;
  // up's rows follow gate's, its scales too; blocks of scales do not cross from one to the other.
  const int64_t scale_rows =
      format == Format::fp8_block ? divide_up(l.intermediate, FP8_BLOCK) : l.intermediate;
  const uint8_t *scales =
      e.gate.scale == nullptr ? nullptr : e.gate.scale + scale_rows * e.gate.scale_row_bytes;
  return describe(format, l.intermediate, l.hidden,
                  e.gate.weight + l.intermediate * e.gate.row_bytes, scales,
                  globals == nullptr ? nullptr : globals + 4, e.up) &&
         describe(static_cast<Format>(l.down_format), l.hidden, l.intermediate,
                  at(blob, l.down_weight), at(blob, l.down_scale), at(blob, l.down_scale_2),
                  e.down);
}

void gate_and_up(const Step &s, int64_t task, int thread) {
  const auto [group, row, count] = inner_tile(s, task);
  const Form &form = *group.form;
  const Kernel &kernel = *form.gate_up.kernel;
  Expert e;
  read_expert(s.layout, s.bank + group.slot * s.layout.stride, e);
  float *scratch = s.engine.scratch[static_cast<size_t>(thread)].floats();
  float *gate = s.results(thread), *up = gate + TOKEN_BLOCK * s.tile;
  float *gathered = up + TOKEN_BLOCK * s.tile;
  const float *x[TOKEN_BLOCK];
  float *gates[TOKEN_BLOCK], *ups[TOKEN_BLOCK];
  for (int64_t begin = group.begin; begin < group.end; begin += TOKEN_BLOCK) {
    const int64_t tokens = std::min(TOKEN_BLOCK, group.end - begin);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t token = s.routes[static_cast<size_t>(begin + t)] / s.width;
      x[t] = form.x + token * form.gate_up.size;
      if (kernel.tiles) {
        float *const to = gathered + t * form.gate_up.size;
        std::memcpy(to, x[t], static_cast<size_t>(form.gate_up.size) * 4);
        x[t] = to;
      }
      gates[t] = gate + t * s.tile;
      ups[t] = up + t * s.tile;
    }
    kernel.product(e.gate, row, count, x, tokens, gates, scratch);
    kernel.product(e.up, row, count, x, tokens, ups, scratch);
    for (int64_t t = 0; t < tokens; ++t) {
      e.gate_up_bias.add(row, count, gates[t]);
      e.gate_up_bias.add(s.layout.intermediate + row, count, ups[t]);
      s.tier.glu(s.activation, gates[t], ups[t], gates[t], count);
      if (!s.backed_up) form.down.put(gates[t], row, count, s.inner_row(begin + t));
    }
  }
}

void down(const Step &s, int64_t task, int thread) {
  const auto [group, row, count] = hidden_tile(s, task);
  Expert e;
  read_expert(s.layout, s.bank + group.slot * s.layout.stride, e);
  const float *x[TOKEN_BLOCK];
  float *out[TOKEN_BLOCK];
  for (int64_t begin = group.begin; begin < group.end; begin += TOKEN_BLOCK) {
    const int64_t tokens = std::min(TOKEN_BLOCK, group.end - begin);
    for (int64_t t = 0; t < tokens; ++t) {
      x[t] = s.inner_row(begin + t);
      out[t] = s.backed_up ? s.results(thread) + t * s.tile : s.row(begin + t) + row;
    }
    group.form->down.kernel->product(e.down, row, count, x, tokens, out,
                                     s.engine.scratch[static_cast<size_t>(thread)].floats());
    for (int64_t t = 0; t < tokens; ++t) e.down_bias.add(row, count, out[t]);
  }
}

void arrange(const Step &s, int64_t task) {
  const Form &form = *s.arranged[static_cast<size_t>(task / s.inputs())];
  const int64_t first = task % s.inputs() * ARRANGED_AT_ONCE;
  form.gate_up.arrange(s.x, s.x_type, first, std::min(s.tokens, first + ARRANGED_AT_ONCE), form.x);
}

void work(void *context, int phase, int64_t task, int thread) {
  const Step &s = *static_cast<const Step *>(context);
  if (phase == 0) return arrange(s, task);
  if (phase == 1) return gate_and_up(s, task, thread);
  down(s, task, thread);
}

// Of one block of tokens.
void commit(void *context, int phase, int64_t task, int thread) {
  const Step &s = *static_cast<const Step *>(context);
  const auto [group, row, count] = phase == 1 ? inner_tile(s, task) : hidden_tile(s, task);
  for (int64_t t = 0; t < group.tokens(); ++t) {
    const float *result = s.results(thread) + t * s.tile;
    if (phase == 1)
      group.form->down.put(result, row, count, s.inner_row(group.begin + t));
    else
      std::copy_n(result, count, s.row(group.begin + t) + row);
  }
}

// Groups routes by slot, and says what form each takes. False if a slot is beyond the bank.
bool plan(Step &s, const int64_t *slots, int64_t blobs) {
  for (int64_t route = 0; route < s.tokens * s.width; ++route) {
    if (slots[route] >= blobs) return false;
    if (slots[route] >= 0) s.routes.push_back(route);
  }
  std::sort(s.routes.begin(), s.routes.end(), [slots](int64_t a, int64_t b) {
    return slots[a] != slots[b] ? slots[a] < slots[b] : a < b;
  });
  for (size_t i = 0; i < s.routes.size(); ++i) {
    const int64_t slot = slots[s.routes[i]], place = static_cast<int64_t>(i);
    if (s.groups.empty() || s.groups.back().slot != slot) s.groups.push_back({slot, place, place, nullptr});
    s.groups.back().end = place + 1;
  }
  const bool differ = s.forms[0].gate_up.kernel != s.forms[1].gate_up.kernel ||
                      s.forms[0].down.kernel != s.forms[1].down.kernel;
  for (Group &group : s.groups) {
    group.form = &s.forms[differ && group.tokens() > FEW_TOKENS];
    if (std::find(s.arranged.begin(), s.arranged.end(), group.form) == s.arranged.end())
      s.arranged.push_back(group.form);
  }
  return true;
}

}  // namespace

// A step that threads may be in after its end, and memory for it.
struct KeptStep {
  uint64_t region = 0;
  Buffer activations, inner;
  std::optional<Step> step;
};

namespace {

KeptStep &free_step(Engine &engine) {
  for (const std::shared_ptr<KeptStep> &kept : engine.steps)
    if (!engine.pool.attended(kept->region)) return *kept;
  return *engine.steps.emplace_back(std::make_shared<KeptStep>());
}

}  // namespace

int32_t moe_rows(Engine &engine, const headrace_expert_layout &layout, const uint8_t *bank,
                 int64_t blobs, const void *x, int32_t x_type, int64_t tokens, int64_t routes,
                 const int64_t *slots, int32_t activation, float *rows) {
  Expert probe;
  if (!read_expert(layout, bank, probe) || activation < 0 || activation > HEADRACE_CLAMPED_SWIGLU)
    return HEADRACE_BAD_ARGUMENT;
  const int32_t done = engine.pool.attended() ? HEADRACE_LATE : HEADRACE_OK;
  const auto form = [&](int64_t many) {
    return Form{{*engine.tier, probe.gate.format, layout.hidden, numbers_of(x_type), many},
                {*engine.tier, probe.down.format, layout.intermediate, between_numbers_of(x_type),
                 many},
                nullptr};
  };
  const int64_t tile = tokens > FEW_TOKENS ? PROMPT_TILE : TILE;
  KeptStep &kept = free_step(engine);
  Step &s = kept.step.emplace(
      Step{engine, *engine.tier, layout, bank, x, x_type, tokens, routes, activation, rows,
           {form(1), form(FEW_TOKENS + 1)}, tile, divide_up(layout.intermediate, tile),
           divide_up(layout.hidden, tile)});
  if (!plan(s, slots, blobs)) return HEADRACE_BAD_SLOT;
  if (s.routes.empty()) return done;

  // A prompt takes much longer than a thread is late, and much memory.
  s.backed_up = tokens <= FEW_TOKENS &&
                std::all_of(s.groups.begin(), s.groups.end(),
                            [](const Group &group) { return group.tokens() <= TOKEN_BLOCK; });
  const int64_t all = static_cast<int64_t>(s.routes.size());
  int64_t floats = 0, gathered = 0;
  for (const Form *f : s.arranged) {
    floats += f->gate_up.floats(tokens);
    gathered = std::max(gathered, f->gate_up.kernel->tiles ? TOKEN_BLOCK * f->gate_up.size : 0);
    s.inner_size = std::max(s.inner_size, f->down.size);
    s.scratch_bytes =
        std::max({s.scratch_bytes, f->gate_up.scratch_bytes(), f->down.scratch_bytes()});
  }
  Buffer &activations = s.backed_up ? kept.activations : engine.activations;
  Buffer &inner = s.backed_up ? kept.inner : engine.inner;
  if (!activations.reserve(floats * 4) ||
      !inner.reserve((all + TILE_TOKENS - 1) * s.inner_size * 4) ||
      !engine.reserve_scratch(s.scratch_bytes + (2 * TOKEN_BLOCK * tile + gathered) * 4))
    return HEADRACE_OUT_OF_MEMORY;
  s.inner = inner.floats();
  float *place = activations.floats();
  for (Form &f : s.forms) {
    f.x = place;
    if (std::count(s.arranged.begin(), s.arranged.end(), &f)) place += f.gate_up.floats(tokens);
  }
  for (const Group &group : s.groups)
    for (int64_t i = group.begin; i < group.end; ++i) group.form->down.pad(s.inner_row(i));

  const int64_t groups = static_cast<int64_t>(s.groups.size());
  const int threads = threads_for(engine, all * layout.hidden * layout.intermediate * 3);
  int64_t arrangements = static_cast<int64_t>(s.arranged.size()) * s.inputs();
  // Late threads must not read what the caller may free.
  for (; s.backed_up && arrangements > 0; --arrangements) arrange(s, arrangements - 1);
  kept.region = engine.pool.run(
      {3, {arrangements, groups * s.inner_tiles, groups * s.hidden_tiles}, work, &s,
       s.backed_up ? commit : nullptr},
      threads);
  return done;
}

}  // namespace headrace
