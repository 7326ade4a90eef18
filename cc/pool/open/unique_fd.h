#ifndef JAX_CXL_POOL_OPEN_UNIQUE_FD_H_
#define JAX_CXL_POOL_OPEN_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace jax_cxl::pool {

// Owns a file descriptor. Closing the descriptor also drops the locks that were
// taken through it.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }

  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

  void Reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_UNIQUE_FD_H_
