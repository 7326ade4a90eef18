#include "cc/pool/open/lock_holder.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstddef>
#include <cstdio>
#include <fstream>
#include <span>

#include "cc/base/process_identity.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/open/contents.h"

namespace jax_cxl::pool {

std::vector<HeldLock> HeldLocks() {
  std::vector<HeldLock> held;
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    int pid = 0;
    unsigned line_major = 0, line_minor = 0;
    unsigned long long inode = 0;
    // A line is like "1: FLOCK  ADVISORY  WRITE 708 00:1a:13 0 EOF".
    if (std::sscanf(line.c_str(), "%*d: FLOCK %*s %*s %d %x:%x:%llu", &pid,
                    &line_major, &line_minor, &inode) == 4 &&
        pid > 0)
      held.push_back({pid, makedev(line_major, line_minor), inode});
  }
  return held;
}

std::string DescribeLockHolder(int fd, uint64_t offset) {
  struct stat info = {};
  fstat(fd, &info);
  for (const HeldLock& lock : HeldLocks())
    if (lock.device == info.st_dev && lock.inode == info.st_ino)
      return DescribeProcess(lock.pid);
  return DescribeKeeper(fd, offset, 0);
}

std::string DescribeKeeper(int fd, uint64_t offset, uint64_t align) {
  HeaderPage page = {};
  const Result<uint64_t> got = ReadAt(
      fd, "", align, offset, std::as_writable_bytes(std::span(&page, 1)));
  if (!got.ok() || page.keeper.process.pid <= 0) return "another process";
  return "another job, of " + DescribeProcess(page.keeper.process);
}

}  // namespace jax_cxl::pool
