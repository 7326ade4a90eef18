#include "cc/pool/open/lock_holder.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "cc/base/process_identity.h"
#include "cc/pool/layout/layout.h"

namespace jax_cxl::pool {
namespace {

// Reads /proc/locks, which shows only the processes of this pid namespace.
int PidFromKernel(dev_t device, ino_t inode) {
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    int pid = 0;
    unsigned line_major = 0, line_minor = 0;
    unsigned long long line_inode = 0;
    // 1: FLOCK  ADVISORY  WRITE 708 00:1a:13 0 EOF
    if (std::sscanf(line.c_str(), "%*d: FLOCK %*s %*s %d %x:%x:%llu", &pid,
                    &line_major, &line_minor, &line_inode) == 4 &&
        pid > 0 && line_inode == inode && line_major == major(device) &&
        line_minor == minor(device)) {
      return pid;
    }
  }
  return 0;
}

}  // namespace

std::string DescribeLockHolder(int fd, dev_t device, ino_t inode,
                               uint64_t offset) {
  if (const int pid = PidFromKernel(device, inode); pid > 0) {
    return DescribeProcess(pid);
  }
  return DescribeKeeper(fd, offset, 0);
}

std::string DescribeKeeper(int fd, uint64_t offset, uint64_t align) {
  struct stat info;
  if (fstat(fd, &info) != 0) return "another process";
  // Devices support mmap, but not read. Reading past the end of a mapped file
  // would raise SIGBUS.
  const uint64_t page = sysconf(_SC_PAGESIZE);
  const uint64_t begin = offset / page * page;
  const uint64_t bytes = std::max(align, page + kPageBytes);
  if (align == 0 && static_cast<uint64_t>(info.st_size) < begin + bytes)
    return "another process";
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd,
                      static_cast<off_t>(begin));
  if (mapped == MAP_FAILED) return "another process";
  HeaderPage copy;
  std::memcpy(&copy, static_cast<std::byte*>(mapped) + (offset - begin),
              sizeof(copy));
  munmap(mapped, bytes);
  if (copy.keeper.process.pid <= 0) return "another process";
  return "another job, of " + DescribeProcess(copy.keeper.process);
}

}  // namespace jax_cxl::pool
