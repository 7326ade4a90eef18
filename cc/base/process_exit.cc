#include "cc/base/process_exit.h"

#include <sys/ioctl.h>
#include <sys/wait.h>

#include <cstring>
#include <optional>

#include "cc/base/process_stat.h"

namespace jax_cxl {
namespace {

// Copied from <linux/pidfd.h>, which lacks these definitions on older systems.
struct PidfdInfo {
  uint64_t mask;
  uint64_t cgroup;
  uint32_t ids[11];
  int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr uint64_t kInfoExit = 1 << 3;
constexpr unsigned long kGetInfo = _IOWR(0xFF, 11, PidfdInfo);

// Reads the status of a process that exits or is a zombie.
std::optional<int> StatusOfExiting(int64_t pid) {
  const std::optional<ProcessStat> found = ReadProcessStat(pid);
  if (!found || !found->exiting()) return std::nullopt;
  return found->exit_code;
}

// Reads the status of a process whose parent has collected the status.
std::optional<int> StatusOfReaped(int pidfd) {
  PidfdInfo info = {};
  info.mask = kInfoExit;
  if (ioctl(pidfd, kGetInfo, &info) != 0 || !(info.mask & kInfoExit))
    return std::nullopt;
  return info.exit_code;
}

}  // namespace

std::string DescribeExit(int pidfd, int64_t pid) {
  std::optional<int> status = StatusOfExiting(pid);
  if (!status) status = StatusOfReaped(pidfd);
  if (!status) return "";
  if (!WIFSIGNALED(*status))
    return "with status " + std::to_string(WEXITSTATUS(*status));
  return "by signal " + std::to_string(WTERMSIG(*status)) + " (" +
         strsignal(WTERMSIG(*status)) + ")";
}

}  // namespace jax_cxl
