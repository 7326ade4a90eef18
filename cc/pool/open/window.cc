#include "cc/pool/open/window.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/open/file_error.h"

namespace jax_cxl::pool {

Result<Window> Window::Map(int fd, const std::string& path, uint64_t align,
                           uint64_t offset, uint64_t bytes) {
  const uint64_t unit = std::max(align, FilePageBytes());
  Window window;
  const uint64_t begin = RoundDown(offset, unit);
  window.skipped_ = offset - begin;
  window.length_ = RoundUp(offset + bytes, unit) - begin;
  window.mapped_ = mmap(nullptr, window.length_, PROT_READ, MAP_SHARED, fd,
                        static_cast<off_t>(begin));
  if (window.mapped_ == MAP_FAILED) {
    window.mapped_ = nullptr;
    return FileError(errno, "map", path);
  }
  return window;
}

Window::Window(Window&& other) noexcept
    : mapped_(std::exchange(other.mapped_, nullptr)),
      length_(other.length_),
      skipped_(other.skipped_) {}

Window::~Window() {
  if (mapped_ != nullptr) munmap(mapped_, length_);
}

}  // namespace jax_cxl::pool
