#ifndef JAX_CXL_TESTING_POOL_SCRATCH_H_
#define JAX_CXL_TESTING_POOL_SCRATCH_H_

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "cc/pool/open/unique_fd.h"

// Code that the tests of pools share.
namespace jax_cxl::pool {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

// A new directory. The destructor removes it with its contents.
class TempDirectory {
 public:
  TempDirectory() {
    // mkdtemp replaces the last six letters, which must be X.
    std::string pattern =
        std::filesystem::temp_directory_path() / "jax_cxl_pool_";
    pattern.append(6, 'X');
    if (mkdtemp(pattern.data()) == nullptr) abort();
    path_ = pattern;
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

// Returns a name that no other test process uses.
inline std::string UniqueName(const std::string& stem) {
  static int count = 0;
  return stem + "." + std::to_string(getpid()) + "." + std::to_string(++count);
}

// A child process that runs `body`, and then lives until it is killed.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      const char good = body() ? 'y' : 'n';
      if (write(ends[1], &good, 1) != 1) _exit(1);
      for (;;) pause();
    }
    const UniqueFd read_end(ends[0]);
    close(ends[1]);
    char answer = 'n';
    ready_ = read(ends[0], &answer, 1) == 1 && answer == 'y';
  }
  ~Child() { Kill(); }

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  bool ready_ = false;
};

// Runs `body` in a child process. Returns true if `body` returned true.
inline bool PassesInChild(const std::function<bool()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_POOL_SCRATCH_H_
