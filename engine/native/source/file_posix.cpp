#if !defined(_WIN32)

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "file.h"

namespace headrace {

namespace {

// Linux returns at most 2 GiB less a page of one call, macOS refuses more.
constexpr int64_t MOST_AT_ONCE = int64_t{1} << 30;

#if defined(__linux__)
// Who could not write to a file is told that all of it is in memory, for secrecy.
bool may_ask_what_is_cached(const char *path, const struct stat &facts) {
  return facts.st_uid == geteuid() || access(path, W_OK) == 0;
}
#endif

}  // namespace

int File::open(const std::string &path) {
  close();
  plain_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (plain_ < 0) return errno;
#if defined(__linux__)
  struct stat facts;
  if (fstat(plain_, &facts) == 0 && facts.st_size > 0 &&
      may_ask_what_is_cached(path.c_str(), facts)) {
    void *map = mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ, MAP_SHARED, plain_, 0);
    if (map != MAP_FAILED) map_ = map, size_ = facts.st_size;
  }
  unbuffered_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  direct_ = unbuffered_ >= 0;
#elif defined(F_NOCACHE)
  fcntl(plain_, F_NOCACHE, 1);  // any place and length will do
#endif
  return 0;
}

void File::close() {
  if (map_ != nullptr) munmap(map_, static_cast<size_t>(size_));
  if (plain_ >= 0) ::close(plain_);
  if (unbuffered_ >= 0) ::close(unbuffered_);
  plain_ = unbuffered_ = -1;
  map_ = nullptr;
  direct_ = false;
}

int64_t File::read(void *to, int64_t offset, int64_t count, bool direct, int &error) const {
  int64_t done = 0;
  while (done < count) {
    const ssize_t got = pread(direct ? unbuffered_ : plain_, static_cast<char *>(to) + done,
                              static_cast<size_t>(std::min(count - done, MOST_AT_ONCE)),
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      error = errno;
      return -1;
    }
    done += got;
    // A direct read that stops within a block has met the end of the file.
    if (got == 0 || (direct && got % DIRECT_ALIGNMENT != 0)) break;
  }
  return done;
}

bool File::cached(int64_t offset, int64_t count) const {
#if defined(__linux__)
  if (map_ == nullptr || offset + count > size_) return false;
  const int64_t page = sysconf(_SC_PAGESIZE), begin = offset / page * page;
  const int64_t length = offset + count - begin;
  std::vector<unsigned char> in_memory(static_cast<size_t>((length + page - 1) / page));
  if (mincore(static_cast<char *>(map_) + begin, static_cast<size_t>(length), in_memory.data()))
    return false;
  return std::all_of(in_memory.begin(), in_memory.end(), [](auto p) { return (p & 1) != 0; });
#else
  (void)offset, (void)count;
  return false;
#endif
}

void File::forget(int64_t offset, int64_t count) const {
#if defined(__linux__)
  posix_fadvise(plain_, offset, count, POSIX_FADV_DONTNEED);
#else
  (void)offset, (void)count;
#endif
}

bool File::direct_is_refused(int error) { return error == EINVAL || error == ENOTSUP; }

}  // namespace headrace

#endif
