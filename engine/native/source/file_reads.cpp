// Ranges of files, read by several threads into their final places.
//
// A file is read window by window: what lies close together in it arrives in one read, however many
// places it goes to. What the system's cache already holds is copied from there; everything else is
// read directly, so that no second copy of a model pushes other programs' files out of memory. A
// direct read wants addresses and offsets on block boundaries, which tensors seldom have: such a
// window arrives in a buffer of the thread and is copied on while it is in the processor's caches.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "file.h"
#include "headrace_files.h"

namespace headrace {

namespace {

// Large enough for a disk's full rate, small enough that eight threads' buffers do not count.
constexpr int64_t WINDOW = int64_t{4} << 20;
// What lies between two ranges is read along if it costs less than another read would.
constexpr int64_t MOST_BETWEEN = int64_t{64} << 10;

struct Window {
  int64_t file, begin, end;
  size_t first, last;  // pieces
};

struct Buffer {
  Buffer()
      : data(static_cast<char *>(::operator new(
            static_cast<size_t>(WINDOW), std::align_val_t{static_cast<size_t>(DIRECT_ALIGNMENT)}))) {
  }
  ~Buffer() {
    ::operator delete(data, std::align_val_t{static_cast<size_t>(DIRECT_ALIGNMENT)});
  }
  Buffer(const Buffer &) = delete;
  char *const data;
};

// Cut at multiples of WINDOW in the file, so that no block belongs to two windows.
std::vector<headrace_file_range> pieces_of(const headrace_file_range *ranges, int64_t count) {
  std::vector<headrace_file_range> pieces;
  pieces.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    headrace_file_range left = ranges[i];
    while (left.bytes > 0) {
      headrace_file_range piece = left;
      piece.bytes = std::min(left.bytes, (left.offset / WINDOW + 1) * WINDOW - left.offset);
      pieces.push_back(piece);
      left.offset += piece.bytes;
      left.bytes -= piece.bytes;
      left.to += static_cast<uint64_t>(piece.bytes);
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const auto &a, const auto &b) {
    return a.file != b.file ? a.file < b.file : a.offset < b.offset;
  });
  return pieces;
}

std::vector<Window> windows_of(const std::vector<headrace_file_range> &pieces) {
  std::vector<Window> windows;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto &piece = pieces[i];
    const int64_t end = piece.offset + piece.bytes;
    if (!windows.empty()) {
      Window &open = windows.back();
      if (open.file == piece.file && piece.offset / WINDOW == open.begin / WINDOW &&
          piece.offset - open.end <= MOST_BETWEEN) {
        open.end = std::max(open.end, end);
        open.last = i + 1;
        continue;
      }
    }
    windows.push_back({piece.file, piece.offset, end, i, i + 1});
  }
  return windows;
}

// What another program's writing would change.
struct State {
  std::uintmax_t size = 0;
  std::filesystem::file_time_type written;
  bool operator==(const State &) const = default;
};

std::filesystem::path system_path(const std::string &path) {
#if defined(_WIN32)
  return std::u8string(path.begin(), path.end());
#else
  return path;
#endif
}

State state_of(const std::string &path, std::error_code &error) {
  State state;
  state.size = std::filesystem::file_size(system_path(path), error);
  if (!error) state.written = std::filesystem::last_write_time(system_path(path), error);
  return state;
}

}  // namespace

class Reading {
 public:
  Reading(std::vector<std::string> paths, const headrace_file_range *ranges, int64_t count)
      : paths_(std::move(paths)), pieces_(pieces_of(ranges, count)), windows_(windows_of(pieces_)) {}

  ~Reading() {
    cancel();
    for (std::thread &thread : threads_) thread.join();
  }

  void begin(int threads) {
    if (!look_at_files(before_)) return;
    threads = static_cast<int>(
        std::min(static_cast<size_t>(std::max(threads, 1)), std::max<size_t>(windows_.size(), 1)));
    threads_.reserve(static_cast<size_t>(threads));
    for (int i = 0; i < threads; ++i) {
      const std::lock_guard<std::mutex> lock(mutex_);
      try {
        threads_.emplace_back([this] { work(); });
        ++working_;
      } catch (const std::system_error &) {
        break;  // fewer will do
      }
    }
    if (threads_.empty() && !windows_.empty())
      fail(HEADRACE_READ_OUT_OF_MEMORY, -1, 0, 0);
  }

  int64_t done() const { return done_; }

  bool wait(std::chrono::milliseconds most) {
    std::unique_lock<std::mutex> lock(mutex_);
    return ended_.wait_for(lock, most, [&] { return working_ == 0; });
  }

  void cancel() { stop_ = true; }

  int32_t end(headrace_read_outcome &outcome) {
    for (std::thread &thread : threads_) thread.join();
    threads_.clear();
    int64_t wanted = 0;
    for (const headrace_file_range &piece : pieces_) wanted += piece.bytes;
    if (status_ == HEADRACE_READ_OK && done_ < wanted) status_ = HEADRACE_READ_CANCELLED;
    std::vector<State> after;
    if (status_ == HEADRACE_READ_OK && look_at_files(after))
      for (size_t i = 0; i < paths_.size(); ++i)
        if (after[i] != before_[i]) fail(HEADRACE_READ_CHANGED, static_cast<int64_t>(i), 0, 0);
    outcome_.direct = direct_;
    outcome = outcome_;
    return status_;
  }

 private:
  bool look_at_files(std::vector<State> &states) {
    for (size_t i = 0; i < paths_.size(); ++i) {
      std::error_code error;
      states.push_back(state_of(paths_[i], error));
      if (error) {
        fail(HEADRACE_READ_CANNOT_OPEN, static_cast<int64_t>(i), 0, error.value());
        return false;
      }
    }
    return true;
  }

  void fail(int32_t status, int64_t file, int64_t offset, int error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_ != HEADRACE_READ_OK) return;  // the first failure is the cause of others
    status_ = status;
    outcome_.file = static_cast<int32_t>(file);
    outcome_.offset = offset;
    outcome_.system_error = error;
    stop_ = true;
  }

  void work() {
    try {
      Buffer buffer;
      File file;
      int64_t opened = -1;
      while (!stop_) {
        const size_t number = next_.fetch_add(1);
        if (number >= windows_.size()) break;
        const Window &window = windows_[number];
        if (window.file != opened) {
          if (const int error = file.open(paths_[static_cast<size_t>(window.file)])) {
            fail(HEADRACE_READ_CANNOT_OPEN, window.file, window.begin, error);
            break;
          }
          opened = window.file;
        }
        fill(file, window, buffer.data);
      }
    } catch (const std::bad_alloc &) {
      fail(HEADRACE_READ_OUT_OF_MEMORY, -1, 0, 0);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--working_ == 0) ended_.notify_all();
  }

  void fill(File &file, const Window &window, char *buffer) {
    const bool cached = file.cached(window.begin, window.end - window.begin);
    if (!cached && file.direct() && fill_directly(file, window, buffer)) return;
    if (stop_) return;
    for (size_t i = window.first; i < window.last; ++i) {
      const headrace_file_range &piece = pieces_[i];
      if (!read(file, window, reinterpret_cast<void *>(piece.to), piece.offset, piece.bytes)) return;
      done_ += piece.bytes;
    }
    if (!cached) file.forget(window.begin, window.end - window.begin);
  }

  bool read(const File &file, const Window &window, void *to, int64_t offset, int64_t bytes) {
    int error = 0;
    const int64_t got = file.read(to, offset, bytes, false, error);
    if (got < 0)
      fail(HEADRACE_READ_FAILED, window.file, offset, error);
    else if (got < bytes)
      fail(HEADRACE_READ_SHORT, window.file, offset + got, 0);
    return got == bytes;
  }

  // False if the file system wants no direct reads (or one failed: `stop_` is set then).
  bool fill_directly(File &file, const Window &window, char *buffer) {
    const int64_t begin = window.begin / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT;
    const int64_t wanted = window.end - begin;
    const headrace_file_range &only = pieces_[window.first];
    const int64_t blocks = (wanted + DIRECT_ALIGNMENT - 1) / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT;
    const bool in_place = window.last == window.first + 1 && begin == window.begin &&
                          only.to % DIRECT_ALIGNMENT == 0 && blocks == wanted;
    void *to = in_place ? reinterpret_cast<void *>(only.to) : buffer;
    int error = 0;
    const int64_t got = file.read(to, begin, blocks, true, error);
    if (got < 0 && File::direct_is_refused(error)) {
      file.refuse_direct();
      return false;
    }
    if (got < wanted) {
      if (got < 0)
        fail(HEADRACE_READ_FAILED, window.file, window.begin, error);
      else
        fail(HEADRACE_READ_SHORT, window.file, begin + got, 0);
      return false;
    }
    int64_t placed = 0;
    for (size_t i = window.first; i < window.last; ++i) {
      const headrace_file_range &piece = pieces_[i];
      if (!in_place)
        std::memcpy(reinterpret_cast<void *>(piece.to), buffer + (piece.offset - begin),
                    static_cast<size_t>(piece.bytes));
      placed += piece.bytes;
    }
    direct_ += placed;
    done_ += placed;
    return true;
  }

  const std::vector<std::string> paths_;
  const std::vector<headrace_file_range> pieces_;
  const std::vector<Window> windows_;
  std::vector<State> before_;
  std::vector<std::thread> threads_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> done_{0}, direct_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // of everything below
  std::condition_variable ended_;
  int working_ = 0;
  int32_t status_ = HEADRACE_READ_OK;
  headrace_read_outcome outcome_{0, 0, -1, 0};
};

}  // namespace headrace

struct headrace_reading : headrace::Reading {
  using Reading::Reading;
};

extern "C" {

headrace_reading *headrace_read_begin(const char *const *paths, int64_t files,
                                      const headrace_file_range *ranges, int64_t count,
                                      int32_t threads) {
  try {
    auto made = std::make_unique<headrace_reading>(std::vector<std::string>(paths, paths + files),
                                                   ranges, count);
    made->begin(threads);
    return made.release();
  } catch (...) {
    return nullptr;
  }
}

int64_t headrace_read_done(const headrace_reading *reading) { return reading->done(); }

int32_t headrace_read_wait(headrace_reading *reading, int32_t milliseconds) {
  return reading->wait(std::chrono::milliseconds(milliseconds)) ? 1 : 0;
}

void headrace_read_cancel(headrace_reading *reading) { reading->cancel(); }

int32_t headrace_read_end(headrace_reading *reading, headrace_read_outcome *outcome) {
  try {
    const std::unique_ptr<headrace_reading> held(reading);
    return held->end(*outcome);
  } catch (...) {
    return HEADRACE_READ_OUT_OF_MEMORY;
  }
}

}  // extern "C"
