#include "cc/base/process_stat.h"

#include <sys/ioctl.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace jax_cxl {
namespace {

// PF_EXITING, PF_POSTCOREDUMP and PF_DUMPCORE of the kernel's <linux/sched.h>.
// Before Linux 5.16 the second bit was PF_EXITPIDONE. That bit also marked
// exiting threads, so this file can treat both alike.
constexpr uint64_t kExiting = 0x4;
constexpr uint64_t kPostCoreDump = 0x8;
constexpr uint64_t kDumpCore = 0x200;

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

// Returns the wait status of a process that has ended.
std::optional<int> ExitStatus(int pidfd, int64_t pid) {
  const std::optional<ProcessStat> found = ReadProcessStat(pid);
  if (found && found->exiting()) return found->exit_code;
  // /proc no longer has the process, because its parent has collected the
  // status. Newer kernels still tell the status through the pidfd.
  PidfdInfo info = {};
  info.mask = kInfoExit;
  if (ioctl(pidfd, kGetInfo, &info) != 0 || !(info.mask & kInfoExit))
    return std::nullopt;
  return info.exit_code;
}

}  // namespace

bool ProcessStat::exiting() const {
  return state == 'Z' || state == 'X' || (flags & kExiting) != 0;
}

bool ProcessStat::ending() const {
  return exiting() || (flags & (kPostCoreDump | kDumpCore)) != 0;
}

std::optional<ProcessStat> ReadProcessStat(int64_t pid) {
  return ReadStat("/proc/" + std::to_string(pid));
}

std::optional<ProcessStat> ReadStat(const std::string& folder) {
  std::ifstream file(folder + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // Start after field 2, because the command in it may contain blanks and
  // parentheses.
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  ProcessStat found;
  rest >> found.state;
  std::string text;
  for (int field = 4; field <= 52 && rest >> text; ++field) {
    const uint64_t number = std::strtoull(text.c_str(), nullptr, 10);
    if (field == 9) found.flags = number;
    if (field == 22) found.start = number;
    if (field == 52) found.exit_code = static_cast<int>(number);
  }
  return found;
}

std::string DescribeExit(int pidfd, int64_t pid) {
  const std::optional<int> status = ExitStatus(pidfd, pid);
  if (!status) return "";
  if (!WIFSIGNALED(*status))
    return "with status " + std::to_string(WEXITSTATUS(*status));
  return "by signal " + std::to_string(WTERMSIG(*status)) + " (" +
         strsignal(WTERMSIG(*status)) + ")";
}

}  // namespace jax_cxl
