#include "cc/pool/open/contents.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "cc/pool/open/file_error.h"

namespace jax_cxl::pool {
namespace {

constexpr uint64_t kPiece = uint64_t{1} << 20;

// Returns where the next data of a file begins, or `end`.
uint64_t SkipHole(int fd, uint64_t at, uint64_t end) {
  const off_t data = lseek(fd, static_cast<off_t>(at), SEEK_DATA);
  if (data >= 0) return std::min(static_cast<uint64_t>(data), end);
  // ENXIO: the rest is a hole. Some file systems do not know their holes.
  return errno == ENXIO ? end : at;
}

}  // namespace

Result<std::optional<uint64_t>> FirstData(int fd, const std::string& path,
                                          uint64_t begin, uint64_t end) {
  std::vector<std::byte> piece(kPiece);
  for (uint64_t at = begin; at < end;) {
    at = SkipHole(fd, at, end);
    if (at == end) break;
    const ssize_t got = pread(fd, piece.data(), std::min(kPiece, end - at),
                              static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, "read", path);
    if (got == 0) break;  // It has become shorter.
    if (const auto found = FirstData({piece.data(), static_cast<size_t>(got)}))
      return std::optional(at + *found);
    at += got;
  }
  return std::optional<uint64_t>();
}

std::optional<uint64_t> FirstData(std::span<const std::byte> bytes) {
  // Comparing with itself, shifted by one byte, runs at the speed of memcmp.
  if (bytes.empty()) return std::nullopt;
  if (bytes[0] == std::byte{0} &&
      std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0)
    return std::nullopt;
  const auto first = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) {
    return b != std::byte{0};
  });
  return first - bytes.begin();
}

}  // namespace jax_cxl::pool
