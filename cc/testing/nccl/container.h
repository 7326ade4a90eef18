#ifndef JAX_CXL_TESTING_NCCL_CONTAINER_H_
#define JAX_CXL_TESTING_NCCL_CONTAINER_H_

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <optional>

// Tests of communicators in containers.
namespace jax_cxl::nccl {

// Runs `test` in a process with other namespaces and, if `shm` is not null,
// with a /dev/shm of its own, which has these options. Returns nothing if the
// machine does not allow that.
inline std::optional<int> InContainer(int namespaces, const char* shm,
                                      const std::function<bool()>& test) {
  constexpr int kNotAllowed = 77;
  const pid_t child = fork();
  if (child == 0) {
    if ((geteuid() != 0 && unshare(CLONE_NEWUSER) != 0) ||
        unshare(namespaces) != 0)
      _exit(kNotAllowed);
    if (shm != nullptr &&
        (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
         mount("shm", "/dev/shm", "tmpfs", 0, shm) != 0))
      _exit(kNotAllowed);
    const pid_t inner = fork();  // the first process of a pid namespace
    if (inner == 0) {
      const bool good = test();
      std::fflush(stdout);
      _exit(good ? 0 : 1);
    }
    int status = 0;
    waitpid(inner, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed)
    return std::nullopt;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

#define RETURN_IF_NOT_ALLOWED(status)                               \
  if (!status) GTEST_SKIP() << "this machine allows no namespaces"; \
  EXPECT_EQ(*status, 0)

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_TESTING_NCCL_CONTAINER_H_
