#include "cc/pool/open/contents.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "cc/pool/coherence/coherence.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/open/file_error.h"

namespace jax_cxl::pool {
namespace {

constexpr uint64_t kPiece = uint64_t{4} << 20;

// Returns where the first data of a file at or after `at` begin, or `end` if
// there are none before it.
uint64_t SkipHole(int fd, uint64_t at, uint64_t end) {
  const off_t data = lseek(fd, static_cast<off_t>(at), SEEK_DATA);
  if (data >= 0) return std::min(static_cast<uint64_t>(data), end);
  // ENXIO means that the rest of the file is a hole. Other errors come from
  // file systems that do not know their holes.
  return errno == ENXIO ? end : at;
}

bool AllZeros(std::span<const std::byte> bytes) {
  // The first byte must be 0. Compare the bytes with themselves, shifted by one
  // byte: both ranges are equal only if all bytes equal the first. This runs at
  // the speed of memcmp.
  return bytes.empty() ||
         (bytes[0] == std::byte{0} &&
          std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace

Result<Window> Window::Map(int fd, const std::string& path, uint64_t align,
                           uint64_t offset, uint64_t bytes) {
  const uint64_t unit = std::max(align, FilePageBytes());
  const uint64_t begin = RoundDown(offset, unit);
  const uint64_t length = RoundUp(offset + bytes, unit) - begin;
  void* mapped = mmap(nullptr, length, PROT_READ, MAP_SHARED, fd,
                      static_cast<off_t>(begin));
  if (mapped == MAP_FAILED) return FileError(errno, "map", path);
  return Window(Mapping(static_cast<std::byte*>(mapped), Unmap{length}),
                offset - begin);
}

Result<uint64_t> ReadAt(int fd, const std::string& path, uint64_t align,
                        uint64_t offset, std::span<std::byte> to) {
  if (align != 0) {
    CXL_ASSIGN_OR_RETURN(const Window window,
                         Window::Map(fd, path, align, offset, to.size()));
    Coherence::ForReading().AcquirePayload(window.at(0), to.size());
    std::memcpy(to.data(), window.at(0), to.size());
    return to.size();
  }
  uint64_t done = 0;
  while (done < to.size()) {
    const ssize_t got = pread(fd, to.data() + done, to.size() - done,
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, "read", path);
    if (got == 0) break;
    done += got;
  }
  return done;
}

Result<std::optional<uint64_t>> FirstData(int fd, const std::string& path,
                                          uint64_t align, uint64_t begin,
                                          uint64_t end) {
  std::vector<std::byte> piece(std::min(kPiece, end - begin));
  for (uint64_t at = begin; at < end;) {
    if (align == 0) at = SkipHole(fd, at, end);
    const std::span to(piece.data(),
                       std::min<uint64_t>(piece.size(), end - at));
    CXL_ASSIGN_OR_RETURN(const uint64_t got, ReadAt(fd, path, align, at, to));
    if (!AllZeros(to.first(got)))
      return std::optional(
          at + (std::find_if(to.begin(), to.end(),
                             [](std::byte b) { return b != std::byte{0}; }) -
                to.begin()));
    if (got < to.size()) break;  // It has become shorter.
    at += got;
  }
  return std::optional<uint64_t>();
}

}  // namespace jax_cxl::pool
