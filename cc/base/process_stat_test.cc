#include "cc/base/process_stat.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace jax_cxl {
namespace {

// Runs `end` in a child process, which has to exit. Returns the results of
// DescribeExit before and after this process collects the child's status.
std::pair<std::string, std::string> Ended(const std::function<void()>& end) {
  const pid_t child = fork();
  if (child == 0) {
    end();
    pause();
  }
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  EXPECT_GE(pidfd, 0);
  siginfo_t info;
  EXPECT_EQ(waitid(P_PID, child, &info, WEXITED | WNOWAIT), 0);
  const std::string before = DescribeExit(pidfd, child);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  const std::string after = DescribeExit(pidfd, child);
  close(pidfd);
  return {before, after};
}

TEST(ProcessStatTest, TellsStatusesAndSignals) {
  for (const auto& [end, expected] :
       std::vector<std::pair<std::function<void()>, std::string>>{
           {[] { _exit(0); }, "with status 0"},
           {[] { _exit(3); }, "with status 3"},
           {[] { raise(SIGKILL); }, "by signal 9 (Killed)"}}) {
    const auto [before, after] = Ended(end);
    EXPECT_EQ(before, expected);
    // Empty on older kernels, which forget a status once it is collected.
    if (!after.empty()) {
      EXPECT_EQ(after, expected);
    }
  }
}

TEST(ProcessStatTest, SaysNothingOfAProcessThatRuns) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  EXPECT_EQ(DescribeExit(pidfd, getpid()), "");
  close(pidfd);
}

}  // namespace
}  // namespace jax_cxl
