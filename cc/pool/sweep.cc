#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cc/pool/layout/header.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/open/shm_name.h"
#include "cc/pool/open/unique_fd.h"
#include "cc/pool/pool.h"

namespace jax_cxl::pool {
namespace {

// Returns true if `first_page` is the first page of a complete pool of this
// user, or of a pool whose creator was killed before it wrote the header.
// `rest` is the number of bytes in the file from this page on. A copy of a
// pool's control pages has a valid header too, but is shorter than the pool.
bool BeginsPool(const std::byte* first_page, uint64_t rest) {
  HeaderPage page;
  std::memcpy(&page, first_page, sizeof(page));
  const PoolHeader& header = page.header;
  return IsUnfinished(page) ||
         (IsValid(header) && header.creator_uid == geteuid() &&
          header.total_bytes <= rest);
}

// Returns true if a file is a pool, or all zeros. A file of zeros belongs to a
// job that was killed before it wrote anything. A pool begins at its URI's
// offset, with zeros before it.
bool IsPoolOrZeros(int fd, uint64_t bytes) {
  std::vector<std::byte> buffer(256 * kPageBytes);
  for (uint64_t at = 0;;) {
    const off_t data = lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0) return errno == ENXIO;  // the rest of the file is a hole
    at = static_cast<uint64_t>(data) / kPageBytes * kPageBytes;
    const ssize_t got =
        pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(at));
    if (got <= 0) return got == 0;
    std::fill(buffer.begin() + got, buffer.end(), std::byte{0});
    const auto begins =
        std::find_if(buffer.begin(), buffer.begin() + got,
                     [](std::byte byte) { return byte != std::byte{0}; });
    if (begins != buffer.begin() + got) {
      const uint64_t page = (begins - buffer.begin()) / kPageBytes * kPageBytes;
      return BeginsPool(&buffer[page], bytes - at - page);
    }
    at += got;
  }
}

bool RemoveIfAbandoned(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat opened, named;
  if (!fd.valid() || fstat(fd.get(), &opened) != 0 ||
      !S_ISREG(opened.st_mode) || opened.st_uid != geteuid()) {
    return false;
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;  // in use
  if (!IsPoolOrZeros(fd.get(), static_cast<uint64_t>(opened.st_size)))
    return false;
  // Check again under the lock: the name may refer to a newer file by now.
  return lstat(path.c_str(), &named) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino && unlink(path.c_str()) == 0;
}

}  // namespace

std::vector<std::string> SweepLeftovers() {
  const std::string directory(kShmDirectory);
  DIR* entries = opendir(directory.c_str());
  if (entries == nullptr) return {};
  std::vector<std::string> removed;
  while (const dirent* entry = readdir(entries)) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(kShmPrefix)) continue;
    const std::string path = directory + "/" + std::string(name);
    if (RemoveIfAbandoned(path)) removed.push_back(path);
  }
  closedir(entries);
  return removed;
}

}  // namespace jax_cxl::pool
