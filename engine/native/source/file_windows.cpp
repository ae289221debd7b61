#if defined(_WIN32)

#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <algorithm>
#include <vector>

#include "file.h"

namespace headrace {

namespace {

// A multiple of DIRECT_ALIGNMENT that a call's 32-bit count can hold.
constexpr int64_t MOST_AT_ONCE = int64_t{1} << 30;

HANDLE open_with(const wchar_t *path, DWORD flags) {
  constexpr DWORD everybody = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
  const HANDLE file =
      CreateFileW(path, GENERIC_READ, everybody, nullptr, OPEN_EXISTING, flags, nullptr);
  return file == INVALID_HANDLE_VALUE ? nullptr : file;
}

}  // namespace

int File::open(const std::string &path) {
  close();
  const int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.c_str(), -1, nullptr, 0);
  if (length == 0) return static_cast<int>(GetLastError());
  std::vector<wchar_t> wide(static_cast<size_t>(length));
  MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.c_str(), -1, wide.data(), length);
  plain_ = open_with(wide.data(), FILE_ATTRIBUTE_NORMAL);
  if (plain_ == nullptr) return static_cast<int>(GetLastError());
  unbuffered_ = open_with(wide.data(), FILE_FLAG_NO_BUFFERING);
  direct_ = unbuffered_ != nullptr;
  return 0;
}

void File::close() {
  if (plain_ != nullptr) CloseHandle(plain_);
  if (unbuffered_ != nullptr) CloseHandle(unbuffered_);
  plain_ = unbuffered_ = nullptr;
  direct_ = false;
}

int64_t File::read(void *to, int64_t offset, int64_t count, bool direct, int &error) const {
  int64_t done = 0;
  while (done < count) {
    const int64_t at = offset + done;
    OVERLAPPED place = {};
    place.Offset = static_cast<DWORD>(at & 0xFFFFFFFF);
    place.OffsetHigh = static_cast<DWORD>(at >> 32);
    DWORD got = 0;
    if (!ReadFile(direct ? unbuffered_ : plain_, static_cast<char *>(to) + done,
                  static_cast<DWORD>(std::min(count - done, MOST_AT_ONCE)), &got, &place)) {
      const DWORD code = GetLastError();
      if (code == ERROR_HANDLE_EOF) break;
      error = static_cast<int>(code);
      return -1;
    }
    done += got;
    if (got == 0 || (direct && got % DIRECT_ALIGNMENT != 0)) break;
  }
  return done;
}

bool File::cached(int64_t, int64_t) const { return false; }

void File::forget(int64_t, int64_t) const {}

bool File::direct_is_refused(int error) {
  return error == ERROR_INVALID_PARAMETER || error == ERROR_NOT_SUPPORTED;
}

}  // namespace headrace

#endif
