#include "cc/pool/open/lock_holder.h"

#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "cc/base/process_identity.h"
#include "cc/base/text.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/open/shm_name.h"

namespace jax_cxl::pool {
namespace {

// From /proc/locks, which knows the processes of this pid namespace only.
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
  // Another pid namespace or another host. Rank 0 wrote who it is.
  PoolHeader header;
  RankInfo rank;
  if (pread(fd, &header, sizeof(header), offset) == sizeof(header) &&
      IsValid(header) &&
      pread(fd, &rank, sizeof(rank), offset + kPageBytes) == sizeof(rank) &&
      rank.process.pid > 0) {
    return "another job, whose rank 0 is process " +
           std::to_string(rank.process.pid) + " on host " +
           PrintableText(rank.process.host);
  }
  return "another process";
}

}  // namespace jax_cxl::pool
