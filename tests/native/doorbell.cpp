// Plays the device by the header's words alone: flags by their offsets, waiting for the constant in
// `ready` as a GPU's stream does. Rounds without end in sight, a request that nobody answers, a
// poisoned block, the end at any moment; meanwhile other callers use the pool and change its size.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../../engine/native/source/headrace_native.h"

namespace {

constexpr int64_t TOKENS = 3, ROUTES = 2, HIDDEN = 64, INNER = 32, BLOBS = 4, SECOND = 1'000'000'000;

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
  l.down_weight = 2 * INNER * HIDDEN * 4;
  l.stride = 3 * INNER * HIDDEN * 4;
  return l;
}

struct Device {
  headrace_doorbell_shape shape{};
  std::vector<float> bank;
  uint8_t *block;
  uint32_t rung = 0;

  Device() : bank(static_cast<size_t>(BLOBS * layout().stride / 4)) {
    std::mt19937 bits(3);
    std::normal_distribution<float> normal(0.0f, 0.2f);
    for (float &value : bank) value = normal(bits);
    shape.tokens = TOKENS;
    shape.routes = ROUTES;
    shape.hidden = HIDDEN;
    shape.x_type = HEADRACE_X_FLOAT32;
    require(headrace_doorbell_layout(&shape) == HEADRACE_OK, "the block's layout");
    block = static_cast<uint8_t *>(std::aligned_alloc(64, static_cast<size_t>(shape.bytes)));
    std::memset(block, 0x5a, static_cast<size_t>(shape.bytes));
  }
  ~Device() { std::free(block); }
  Device(const Device &) = delete;

  headrace_coordinator *open(int64_t answer_ns) {
    const headrace_layer layers[2] = {{layout(), bank.data(), BLOBS, HEADRACE_SILU_GLU},
                                      {layout(), bank.data(), BLOBS, HEADRACE_GELU_TANH_GLU}};
    headrace_coordinator *opened = nullptr;
    require(headrace_coordinator_open(layers, 2, &shape, block, answer_ns, -1, &opened) ==
                HEADRACE_OK,
            "opening");
    return opened;
  }

  uint32_t *word(int offset) { return reinterpret_cast<uint32_t *>(block + offset); }
  int64_t *slots() { return reinterpret_cast<int64_t *>(block + shape.slots); }
  float *x() { return reinterpret_cast<float *>(block + shape.x); }
  float *rows() { return reinterpret_cast<float *>(block + shape.rows); }

  void ring(uint32_t layer) {
    *word(HEADRACE_DOORBELL_LAYER) = layer;
    *word(HEADRACE_DOORBELL_TOKENS) = TOKENS;
    *word(HEADRACE_DOORBELL_ROUTES) = ROUTES;
    __atomic_store_n(word(HEADRACE_DOORBELL_READY), 0, __ATOMIC_RELAXED);
    __atomic_store_n(word(HEADRACE_DOORBELL_REQUEST), ++rung, __ATOMIC_RELEASE);
  }
  // Whether the answer counts.
  bool wait() {
    const auto *both = reinterpret_cast<uint64_t *>(block + HEADRACE_DOORBELL_READY);
    for (int looks = 0; !(__atomic_load_n(both, __ATOMIC_ACQUIRE) & HEADRACE_DOORBELL_OVER); ++looks)
      if (looks > 200) std::this_thread::sleep_for(std::chrono::microseconds(10));
    return __atomic_load_n(word(HEADRACE_DOORBELL_POISON), __ATOMIC_ACQUIRE) == 0;
  }
};

struct Step {
  std::vector<float> x, rows;
  std::vector<int64_t> slots;
};

std::vector<Step> steps(Device &device) {
  std::mt19937 bits(5);
  std::normal_distribution<float> normal;
  std::vector<Step> made(6);
  for (size_t i = 0; i < made.size(); ++i) {
    Step &step = made[i];
    step.x.resize(TOKENS * HIDDEN);
    for (float &value : step.x) value = normal(bits);
    for (int64_t j = 0; j < TOKENS * ROUTES; ++j)
      step.slots.push_back(static_cast<int64_t>(bits() % (BLOBS + 1)) - 1);
    step.slots[0] = static_cast<int64_t>(i) % BLOBS;
    step.rows.assign(TOKENS * ROUTES * HIDDEN, 7.0f);
    const headrace_expert_layout l = layout();
    const int32_t status = headrace_moe_rows(
        &l, device.bank.data(), BLOBS, step.x.data(), HEADRACE_X_FLOAT32, TOKENS, ROUTES,
        step.slots.data(), i % 2 ? HEADRACE_GELU_TANH_GLU : HEADRACE_SILU_GLU, step.rows.data());
    require(status == HEADRACE_OK || status == HEADRACE_LATE, "a direct call");
  }
  return made;
}

// False: the block was poisoned meanwhile.
bool play(Device &device, const std::vector<Step> &all, int round) {
  const size_t which = static_cast<size_t>(round) % all.size();
  const Step &step = all[which];
  std::memcpy(device.slots(), step.slots.data(), step.slots.size() * 8);
  std::memcpy(device.x(), step.x.data(), step.x.size() * 4);
  std::fill_n(device.rows(), step.rows.size(), 7.0f);
  device.ring(static_cast<uint32_t>(which % 2));
  if (!device.wait()) return false;
  require(!std::memcmp(device.rows(), step.rows.data(), step.rows.size() * 4),
          "an answer equals the direct call");
  return true;
}

void many_rounds(int rounds) {
  Device device;
  const std::vector<Step> all = steps(device);
  headrace_set_threads(3);
  headrace_coordinator *coordinator = device.open(60 * SECOND);
  std::atomic<bool> over{false};
  std::thread other([&] {
    std::vector<float> w(64 * 64, 0.5f), x(64, 1.0f), y(64);
    const headrace_matrix matrix{64, 64, w.data(), nullptr, nullptr, nullptr, 0};
    for (int i = 0; !over; ++i) {
      if (i % 20 == 0) headrace_set_threads(2 + i / 20 % 3);
      headrace_products(&matrix, 1, x.data(), HEADRACE_X_FLOAT32, 1, y.data());
      require(y[63] == 32.0f, "another caller's product");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (int round = 0; round < rounds; ++round) {
    if (round % 64 == 0) headrace_coordinator_begin(coordinator, 60 * SECOND);
    require(play(device, all, round), "a round");
    if (round % 64 == 63) headrace_coordinator_end(coordinator);
    if (round % 1000 == 999) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  over = true;
  other.join();
  require(headrace_coordinator_answers(coordinator) == static_cast<uint64_t>(rounds), "counting");
  require(headrace_coordinator_close(coordinator, 60 * SECOND) == HEADRACE_OK, "closing");
  require(*device.word(HEADRACE_DOORBELL_POISON) == HEADRACE_POISON_CLOSED, "closed is poisoned");
}

void poisoned() {
  Device device;
  const std::vector<Step> all = steps(device);
  headrace_coordinator *coordinator = device.open(60 * SECOND);
  require(play(device, all, 0), "a round before");
  device.slots()[0] = BLOBS;
  device.ring(0);
  require(!device.wait(), "a slot beyond the bank does not count");
  require(__atomic_load_n(device.word(HEADRACE_DOORBELL_POISON), __ATOMIC_ACQUIRE) ==
              uint32_t{HEADRACE_POISON_REFUSED} + uint32_t{HEADRACE_BAD_SLOT},
          "its reason");
  require(headrace_coordinator_close(coordinator, 60 * SECOND) == HEADRACE_OK, "closing");
  uint32_t ticket = 9;
  require(headrace_doorbell_ring(device.block, 0, 1, 1, &ticket) == HEADRACE_POISONED && !ticket,
          "no ring after");
}

void never_ending() {
  Device device;
  headrace_coordinator *coordinator = device.open(60 * SECOND);
  headrace_coordinator_begin(coordinator, SECOND / 100);
  __atomic_store_n(device.word(HEADRACE_DOORBELL_READY), 0, __ATOMIC_RELAXED);
  require(!device.wait(), "a step without an end is ended");
  require(headrace_coordinator_close(coordinator, 60 * SECOND) == HEADRACE_OK, "closing");
}

void the_end_at_any_moment() {
  for (int round = 0; round < 40; ++round) {
    Device device;
    const std::vector<Step> all = steps(device);
    headrace_coordinator *coordinator = device.open(60 * SECOND);
    std::thread player([&] {
      for (int i = 0; play(device, all, i); ++i) continue;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(round * 150));
    require(headrace_coordinator_close(coordinator, 60 * SECOND) == HEADRACE_OK, "closing");
    player.join();
  }
}

}  // namespace

int main(int count, char **arguments) {
  many_rounds(count > 1 ? std::atoi(arguments[1]) : 1000);
  poisoned();
  never_ending();
  the_end_at_any_moment();
  headrace_set_threads(1);
  std::printf("the doorbell is in order\n");
  return 0;
}
