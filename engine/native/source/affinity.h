// Where a thread runs.
#pragma once

#include <vector>

namespace headrace {

// Keeps the calling thread on these CPUs, by the system's numbers (on Windows group * 64 + number).
// False where the system does not do that or refuses it; macOS gets a class of service instead, by
// which it prefers performance cores.
bool run_on(const std::vector<int> &cpus);

}  // namespace headrace
