#include "cc/base/process_identity.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "cc/base/process_stat.h"

namespace jax_cxl {
namespace {

TEST(ProcessIdentityTest, ThisProcessIsHere) {
  const ProcessIdentity self = ThisProcess();
  EXPECT_EQ(self.pid, getpid());
  EXPECT_EQ(std::strlen(self.boot_id), 36u);
  EXPECT_TRUE(OnThisKernel(self));
  EXPECT_TRUE(PidMeansTheSame(self));
  EXPECT_FALSE(HasEnded(self));
}

TEST(ProcessIdentityTest, HostsOfTheSameNameAreTwo) {
  ProcessIdentity other = ThisProcess();
  std::strcpy(other.boot_id, "00000001-0000-4000-8000-000000000000");
  EXPECT_FALSE(OnThisKernel(other));
  EXPECT_FALSE(PidMeansTheSame(other));
  other.boot_id[0] = 0;  // The boot id is unknown.
  EXPECT_FALSE(OnThisKernel(other));
}

// Containers of one host have different host names, but the same boot id.
TEST(ProcessIdentityTest, ContainersOfOneHostShareItsKernel) {
  ProcessIdentity other = ThisProcess();
  std::strcpy(other.host, "container");
  EXPECT_TRUE(PidMeansTheSame(other));
  other.pid_namespace += 1;
  EXPECT_TRUE(OnThisKernel(other));
  EXPECT_FALSE(PidMeansTheSame(other));
  EXPECT_EQ(DescribeProcess(other),
            "process " + std::to_string(getpid()) + " on host container");
}

TEST(ProcessIdentityTest, ProcessThatEndedOrWhosePidWasReused) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t ended;
  waitid(P_PID, child, &ended, WEXITED | WNOWAIT);
  ProcessIdentity other = ThisProcess();
  other.pid = child;
  EXPECT_TRUE(HasEnded(other));  // a zombie
  EXPECT_TRUE(IsEnding(other));
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(HasEnded(other));
  other = ThisProcess();
  EXPECT_FALSE(IsEnding(other));
  other.process_start -= 1;
  EXPECT_TRUE(HasEnded(other));
  EXPECT_TRUE(IsEnding(other));
}

// The first thread of a process has ended, but another thread keeps the process
// alive. A thread of a GPU's driver can do this for seconds.
TEST(ProcessIdentityTest, ProcessThatHasBegunToEnd) {
  const pid_t child = fork();
  if (child == 0) {
    std::thread([] {
      for (;;) pause();
    }).detach();
    syscall(SYS_exit, 0);
  }
  ProcessIdentity other = ThisProcess();
  other.pid = child;
  const std::optional<ProcessStat> stat = ReadProcessStat(child);
  ASSERT_TRUE(stat.has_value());
  other.process_start = stat->start;
  for (int i = 0; i < 1000 && !IsEnding(other); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(IsEnding(other));
  pollfd end = {static_cast<int>(syscall(SYS_pidfd_open, child, 0)), POLLIN, 0};
  ASSERT_GE(end.fd, 0);
  EXPECT_EQ(poll(&end, 1, 0), 0);  // The kernel has not reported the end.
  kill(child, SIGKILL);
  EXPECT_EQ(poll(&end, 1, 10000), 1);
  close(end.fd);
  waitpid(child, nullptr, 0);
}

TEST(ProcessIdentityTest, StoppedProcessIsNotEnding) {
  const pid_t child = fork();
  if (child == 0)
    for (;;) pause();
  ProcessIdentity other = ThisProcess();
  other.pid = child;
  other.process_start = ReadProcessStat(child)->start;
  EXPECT_FALSE(IsEnding(other));
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  EXPECT_FALSE(IsEnding(other));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace jax_cxl
