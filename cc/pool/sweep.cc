#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "cc/pool/pool.h"
#include "cc/pool/shm_name.h"
#include "cc/pool/unique_fd.h"

namespace jax_cxl::pool {
namespace {

bool RemoveIfAbandoned(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat opened, named;
  if (!fd.valid() || fstat(fd.get(), &opened) != 0 ||
      !S_ISREG(opened.st_mode) || opened.st_uid != geteuid()) {
    return false;
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;  // in use
  // Under the lock: the name may lead to a newer file by now.
  return lstat(path.c_str(), &named) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino && unlink(path.c_str()) == 0;
}

}  // namespace

int SweepLeftovers() {
  const std::string directory(kShmDirectory);
  DIR* entries = opendir(directory.c_str());
  if (entries == nullptr) return 0;
  int removed = 0;
  while (const dirent* entry = readdir(entries)) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(kShmPrefix)) continue;
    if (RemoveIfAbandoned(directory + "/" + std::string(name))) ++removed;
  }
  closedir(entries);
  return removed;
}

}  // namespace jax_cxl::pool
