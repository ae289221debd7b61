// A file that is read at given places, past the system's cache where that is possible.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

// Of addresses, offsets and lengths of direct reads. No disk in use wants more.
constexpr int64_t DIRECT_ALIGNMENT = 4096;

class File {
 public:
  File() = default;
  ~File() { close(); }
  File(const File &) = delete;
  File &operator=(const File &) = delete;

  int open(const std::string &path);  // 0, or the system's error
  void close();

  // Whether direct reads have a chance; they may still be refused when they are tried.
  bool direct() const { return direct_; }
  void refuse_direct() { direct_ = false; }

  // Bytes read at `offset`, fewer only at the end of the file; -1 with the system's error.
  // Direct: address, offset and count are multiples of DIRECT_ALIGNMENT.
  int64_t read(void *to, int64_t offset, int64_t count, bool direct, int &error) const;

  // Whether the system's cache holds all of it, so that a plain read does not wait for the disk.
  bool cached(int64_t offset, int64_t count) const;
  // Tells the system that its copy will not be wanted again.
  void forget(int64_t offset, int64_t count) const;

  // A direct read was refused for what it is, not for a fault of disk or file.
  static bool direct_is_refused(int error);

 private:
#if defined(_WIN32)
  void *plain_ = nullptr, *unbuffered_ = nullptr;
#else
  int plain_ = -1, unbuffered_ = -1;
  void *map_ = nullptr;  // only asked which of its pages are in memory, never touched
  int64_t size_ = 0;
#endif
  bool direct_ = false;
};

}  // namespace headrace
