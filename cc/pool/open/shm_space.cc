#include "cc/pool/open/shm_space.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "cc/pool/open/lock_holder.h"
#include "cc/pool/open/shm_name.h"

namespace jax_cxl::pool {
namespace {

constexpr int kSpaceLockAttempts = 200;
constexpr std::chrono::milliseconds kSpaceLockPause(5);

// Returns how many bytes the files of pools have not taken yet. They have no
// names any more, but each process of a job keeps a lock on its file, and
// descriptors lead to the file.
uint64_t PromisedBytes() {
  struct stat directory;
  if (stat(std::string(kShmDirectory).c_str(), &directory) != 0) return 0;
  std::set<pid_t> processes;
  for (const HeldLock& lock : HeldLocks())
    if (lock.device == directory.st_dev) processes.insert(lock.pid);
  std::set<ino_t> seen;
  uint64_t promised = 0;
  for (const pid_t process : processes) {
    const std::string folder = "/proc/" + std::to_string(process) + "/fd";
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error);
    for (; entry != std::filesystem::directory_iterator();
         entry.increment(error)) {
      const std::string& link = entry->path().native();
      struct stat file;
      // The name is tested first: other files may be on servers that are down.
      if (!std::filesystem::read_symlink(link, error)
               .filename()
               .native()
               .starts_with(kShmPrefix) ||
          stat(link.c_str(), &file) != 0 || file.st_dev != directory.st_dev ||
          !seen.insert(file.st_ino).second)
        continue;
      const uint64_t taken = static_cast<uint64_t>(file.st_blocks) * 512;
      const auto size = static_cast<uint64_t>(file.st_size);
      if (taken < size) promised += size - taken;
    }
  }
  return promised;
}

}  // namespace

uint64_t UnpromisedShmBytes() {
  struct statvfs info;
  // Without blocks, the file system has no limit.
  if (statvfs(std::string(kShmDirectory).c_str(), &info) != 0 ||
      info.f_blocks == 0)
    return UINT64_MAX;
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  const uint64_t promised = PromisedBytes();
  return promised < free ? free - promised : 0;
}

ShmSpaceLock::ShmSpaceLock()
    : directory_(open(std::string(kShmDirectory).c_str(),
                      O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  for (int attempt = 0; attempt < kSpaceLockAttempts; ++attempt) {
    if (!directory_.valid() || flock(directory_.get(), LOCK_EX | LOCK_NB) == 0)
      return;
    std::this_thread::sleep_for(kSpaceLockPause);
  }
}

ShmSpaceLock::~ShmSpaceLock() {
  // A child of this process may have the same descriptor.
  if (directory_.valid()) flock(directory_.get(), LOCK_UN);
}

}  // namespace jax_cxl::pool
