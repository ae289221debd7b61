// Reads a file in pieces, whole and broken off, for the sanitizers. The one argument is its path.
#include <cstdio>
#include <cstring>
#include <vector>

#include "headrace_files.h"

int main(int, char **arguments) {
  const char *path = arguments[1];
  std::vector<unsigned char> content(9000017);
  for (size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  std::FILE *file = std::fopen(path, "wb");
  if (file == nullptr) return 1;
  std::fwrite(content.data(), 1, content.size(), file);
  std::fclose(file);
  int wrong = 0;
  for (size_t round = 0; round < 30; ++round) {
    std::vector<unsigned char> target(content.size() + round);
    std::vector<headrace_file_range> ranges;
    for (size_t at = 0; at < content.size();) {
      size_t bytes = 1 + (at * 7919 + round) % 200000;
      if (at + bytes > content.size()) bytes = content.size() - at;
      ranges.push_back({0, static_cast<int64_t>(at), static_cast<int64_t>(bytes),
                        reinterpret_cast<uint64_t>(target.data() + round + at)});
      at += bytes;
    }
    headrace_reading *reading = headrace_read_begin(&path, 1, ranges.data(),
                                                    static_cast<int64_t>(ranges.size()), 8);
    const bool broken_off = round % 3 == 2;
    if (broken_off) headrace_read_cancel(reading);
    while (!headrace_read_wait(reading, 1)) headrace_read_done(reading);
    headrace_read_outcome outcome;
    const int32_t status = headrace_read_end(reading, &outcome);
    if (broken_off)
      wrong += status != HEADRACE_READ_OK && status != HEADRACE_READ_CANCELLED;
    else
      wrong += status != HEADRACE_READ_OK ||
               std::memcmp(target.data() + round, content.data(), content.size()) != 0;
  }
  const auto size = static_cast<int64_t>(content.size());
  const headrace_file_range beyond{0, size - 5, 10, reinterpret_cast<uint64_t>(content.data())};
  headrace_read_outcome outcome;
  wrong += headrace_read_end(headrace_read_begin(&path, 1, &beyond, 1, 8), &outcome) !=
               HEADRACE_READ_SHORT ||
           outcome.offset != size;
  std::printf("%d wrong\n", wrong);
  return wrong != 0;
}
