#ifndef JAX_CXL_POOL_OPEN_WINDOW_H_
#define JAX_CXL_POOL_OPEN_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "cc/base/status.h"

namespace jax_cxl::pool {

// A range of a file or device, mapped for reading. Devices support mmap, but
// not read.
class Window {
 public:
  // `align` is the alignment of a device, 0 for a file.
  static Result<Window> Map(int fd, const std::string& path, uint64_t align,
                            uint64_t offset, uint64_t bytes);
  Window(Window&& other) noexcept;
  Window& operator=(Window&&) = delete;
  ~Window();

  const std::byte* at(uint64_t offset) const {
    return static_cast<const std::byte*>(mapped_) + skipped_ + offset;
  }

 private:
  Window() = default;

  void* mapped_ = nullptr;
  uint64_t length_ = 0;
  uint64_t skipped_ = 0;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_WINDOW_H_
