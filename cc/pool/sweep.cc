#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/open/contents.h"
#include "cc/pool/open/shm.h"
#include "cc/pool/open/unique_fd.h"
#include "cc/pool/pool.h"

namespace jax_cxl::pool {
namespace {

// Returns true if `page` is the first page of a complete pool of this user, or
// of a pool whose creator was killed before it wrote the header. `rest` is the
// number of bytes in the file from this page on. It must be at least the size
// of the pool, because a saved copy of a pool's control pages has a valid
// header too, but is shorter.
bool BeginsPool(const HeaderPage& page, uint64_t rest) {
  const PoolHeader& header = page.header;
  return IsUnfinished(page) ||
         (IsValid(header) && header.creator_uid == geteuid() &&
          header.total_bytes <= rest);
}

// Returns true if a file is a pool, or all zeros. A file of zeros is left by a
// job that was killed before it wrote anything. A pool begins at the offset in
// its URI, and the file has zeros before it. So the first byte that is not zero
// shows where a pool may begin.
bool IsPoolOrZeros(int fd, const std::string& path, uint64_t bytes) {
  const auto data = FirstData(fd, path, 0, 0, bytes);
  if (!data.ok() || !*data) return data.ok();
  const uint64_t begin = RoundDown(**data, kPageBytes);
  HeaderPage page = {};
  const auto got =
      ReadAt(fd, path, 0, begin, std::as_writable_bytes(std::span(&page, 1)));
  return got.ok() && BeginsPool(page, bytes - begin);
}

bool RemoveIfAbandoned(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat opened, named;
  if (!fd.valid() || fstat(fd.get(), &opened) != 0 ||
      !S_ISREG(opened.st_mode) || opened.st_uid != geteuid()) {
    return false;
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;  // in use
  if (!IsPoolOrZeros(fd.get(), path, opened.st_size)) return false;
  // Now that the file is locked, check its name again, because the name may
  // refer to a newer file by now.
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
