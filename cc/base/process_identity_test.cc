#include "cc/base/process_identity.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

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

// Containers of one host have different host names.
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
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(HasEnded(other));
  other = ThisProcess();
  other.process_start -= 1;
  EXPECT_TRUE(HasEnded(other));
}

}  // namespace
}  // namespace jax_cxl
