#include "cc/base/process_stat.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace jax_cxl {

namespace {

// PF_EXITING, PF_POSTCOREDUMP and PF_DUMPCORE of the kernel's <linux/sched.h>.
// Before Linux 5.16 the second bit was PF_EXITPIDONE, which exiting threads
// also had.
constexpr uint64_t kExiting = 0x4;
constexpr uint64_t kPostCoreDump = 0x8;
constexpr uint64_t kDumpCore = 0x200;

}  // namespace

bool ProcessStat::exiting() const {
  return state == 'Z' || state == 'X' || (flags & kExiting) != 0;
}

bool ProcessStat::ending() const {
  return exiting() || (flags & (kPostCoreDump | kDumpCore)) != 0;
}

std::optional<ProcessStat> ReadProcessStat(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // Start after field 2: the command in it may contain blanks and parentheses.
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  ProcessStat found;
  rest >> found.state;
  std::string text;
  for (int field = 4; field <= 52 && rest >> text; ++field) {
    const char* number = text.c_str();
    if (field == 9) found.flags = std::strtoull(number, nullptr, 10);
    if (field == 22) found.start = std::strtoull(number, nullptr, 10);
    if (field == 52)
      found.exit_code = static_cast<int>(std::strtol(number, nullptr, 10));
  }
  return found;
}

}  // namespace jax_cxl
