#include "cc/pool/open/shm.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <thread>

#include "cc/base/process_identity.h"

namespace jax_cxl::pool {
namespace {

constexpr int kSpaceLockAttempts = 200;
constexpr std::chrono::milliseconds kSpaceLockPause(5);

// Returns the credentials of the process that listens on the socket at
// `address`. The pid is 0 if the process is unknown. Never waits.
ucred Listener(const sockaddr_un& address, socklen_t length) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return {};
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) !=
      0) {
    return {};
  }
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return {};
  }
  return peer;
}

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

bool IsShmName(std::string_view name) {
  return !name.empty() && name.size() <= 64 &&
         std::ranges::all_of(name, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

std::string ShmPath(const std::string& name) {
  return std::string(kShmDirectory) + "/" + std::string(kShmPrefix) + name;
}

Result<UniqueFd> ClaimShmName(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // The leading zero byte puts the name into the abstract namespace.
  std::string text(1, '\0');
  text += std::string(kShmPrefix) + std::to_string(geteuid()) + "." + name;
  text.copy(address.sun_path, sizeof(address.sun_path));
  const socklen_t length = offsetof(sockaddr_un, sun_path) + text.size();

  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return Error(Code::kResourceExhausted, "cannot open a socket: ",
                 std::generic_category().message(errno),
                 "; raise the limit on open files (ulimit -n)");
  }
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) !=
      0) {
    if (errno != EADDRINUSE) {
      return Error(Code::kInternal, "cannot bind the socket that guards pool '",
                   name, "': ", std::generic_category().message(errno),
                   "; name a file instead (file:/path)");
    }
    const ucred holder = Listener(address, length);
    if (holder.pid != 0 && holder.uid != geteuid())
      return Error(Code::kAlreadyExists, "the name of pool shm:", name,
                   " is taken by ", DescribeProcess(holder.pid), " of user ",
                   holder.uid,
                   "; give this job another pool name, or none (shm:)");
    return Error(Code::kAlreadyExists, "pool shm:", name, " is in use by ",
                 DescribeProcess(holder.pid),
                 "; give this job another pool name or stop that process");
  }
  // Listen, so that other processes can connect and learn the id of this
  // process. This process never accepts a connection.
  if (listen(fd.get(), 64) != 0) {
    return Error(Code::kInternal, "cannot listen on the socket of pool '", name,
                 "': ", std::generic_category().message(errno),
                 "; name a file instead (file:/path)");
  }
  return fd;
}

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
