// Layer steps with more threads than there are CPUs, beside others that compute for nothing, so that
// threads are late: rows are those of one thread. What a step is given lies in blocks of exactly its
// size, which are freed when the call returns; the bank when the header allows it.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../../engine/native/source/headrace_native.h"

namespace {

constexpr int64_t HIDDEN = 128, INNER = 96, BLOBS = 5, ROUTES = 3;
constexpr int64_t TOKENS[] = {4, 5, 9, 16, 20};  // the last as a prompt
constexpr int BUSY = 2;

void require(bool condition, const char *what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

headrace_expert_layout layout() {
  headrace_expert_layout l{};
  l.hidden = HIDDEN;
  l.intermediate = INNER;
  l.gate_up_scale = l.gate_up_scale_2 = l.down_scale = l.down_scale_2 = -1;
  l.gate_up_bias = l.down_bias = -1;
  l.down_weight = 2 * INNER * HIDDEN * 4;
  l.stride = 3 * INNER * HIDDEN * 4;
  return l;
}

template <class Number>
std::unique_ptr<Number[]> copy(const std::vector<Number> &from) {
  std::unique_ptr<Number[]> to(new Number[from.size()]);
  std::memcpy(to.get(), from.data(), from.size() * sizeof(Number));
  return to;
}

struct Step {
  int64_t tokens;
  std::vector<float> x, rows;
  std::vector<int64_t> slots;

  int32_t run(const float *bank, float *out) const {
    const auto in = copy(x);
    const auto own = copy(slots);
    auto made = copy(rows);
    std::memset(made.get(), 0, rows.size() * 4);
    headrace_expert_layout l = layout();
    const int32_t status = headrace_moe_rows(&l, bank, BLOBS, in.get(), HEADRACE_X_FLOAT32, tokens,
                                             ROUTES, own.get(), HEADRACE_SILU_GLU, made.get());
    l = {};
    std::memcpy(out, made.get(), rows.size() * 4);
    return status;
  }
};

std::vector<Step> steps(const std::vector<float> &bank) {
  std::mt19937 bits(5);
  std::normal_distribution<float> normal;
  std::vector<Step> made;
  for (const int64_t tokens : TOKENS) {
    Step step{tokens, std::vector<float>(static_cast<size_t>(tokens * HIDDEN)),
              std::vector<float>(static_cast<size_t>(tokens * ROUTES * HIDDEN)), {}};
    for (float &value : step.x) value = normal(bits);
    for (int64_t i = 0; i < tokens * ROUTES; ++i)
      step.slots.push_back(static_cast<int64_t>(bits() % (BLOBS + 1)) - 1);
    require(step.run(bank.data(), step.rows.data()) == HEADRACE_OK, "a step of one thread");
    made.push_back(step);
  }
  return made;
}

}  // namespace

int main(int count, char **arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 500;
  std::vector<float> weights(static_cast<size_t>(BLOBS * layout().stride / 4));
  std::mt19937 bits(3);
  std::normal_distribution<float> normal(0.0f, 0.2f);
  for (float &value : weights) value = normal(bits);
  headrace_set_threads(1);
  const std::vector<Step> all = steps(weights);
  std::vector<std::thread> busy;
  std::atomic<bool> over{false};
  for (int i = 0; i < BUSY; ++i)
    busy.emplace_back([&] {
      while (!over.load(std::memory_order_relaxed)) continue;
    });
  for (const int threads : {2, 3, 4, 8}) {
    require(headrace_set_threads(threads) == threads, "threads");
    std::vector<std::unique_ptr<float[]>> banks;
    for (int round = 0; round < rounds; ++round) {
      const Step &step = all[static_cast<size_t>(round) % all.size()];
      std::vector<float> rows(step.rows.size());
      auto bank = copy(weights);
      const int32_t status = step.run(bank.get(), rows.data());
      require(status == HEADRACE_OK || status == HEADRACE_LATE, "a step");
      require(rows == step.rows, "rows are those of one thread");
      if (status == HEADRACE_OK) banks.clear();
      banks.push_back(std::move(bank));
      if (round % 50 == 49) {
        require(headrace_settle() == HEADRACE_OK, "settling");
        banks.clear();
      }
    }
    require(headrace_settle() == HEADRACE_OK, "settling");
  }
  over.store(true);
  for (std::thread &each : busy) each.join();
  headrace_set_threads(1);
  std::printf("steps are in order\n");
  return 0;
}
