#include "cc/base/process_exit.h"

#include <sys/ioctl.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

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

// Reads the status of a zombie from field 52 of /proc/PID/stat, if field 3 says
// that the process is one.
std::optional<int> StatusOfZombie(int64_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(stat, line)) return std::nullopt;
  // Start after field 2: the command in it may contain blanks and parentheses.
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  std::string state, field;
  rest >> state;
  for (int i = 4; i <= 52; ++i) rest >> field;
  if (state != "Z" || !rest) return std::nullopt;
  return static_cast<int>(std::strtol(field.c_str(), nullptr, 10));
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
  std::optional<int> status = StatusOfZombie(pid);
  if (!status) status = StatusOfReaped(pidfd);
  if (!status) return "";
  if (!WIFSIGNALED(*status))
    return "with status " + std::to_string(WEXITSTATUS(*status));
  return "by signal " + std::to_string(WTERMSIG(*status)) + " (" +
         strsignal(WTERMSIG(*status)) + ")";
}

}  // namespace jax_cxl
