#include "cc/pool/mapping/map.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "cc/pool/layout/geometry.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; C libraries lag behind
#endif

namespace jax_cxl::pool {
namespace {

// The alignment of a mapping. It lets the kernel use huge pages if the file has
// them.
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

Status MapError(int error, uint64_t bytes) {
  return Error(Code::kResourceExhausted, "cannot map a pool of ",
               FormatBytes(bytes), ": ", std::generic_category().message(error),
               "; use a smaller size= or raise the limit on address space "
               "(ulimit -v)");
}

}  // namespace

Result<Mapping> MapContiguous(const std::vector<MapPiece>& pieces) {
  uint64_t total = 0;
  uint64_t align = kHugePageBytes;
  for (const MapPiece& piece : pieces) {
    if (piece.is_device() && total % piece.align != 0) {
      return Error(
          Code::kInvalidArgument, "a device with an alignment of ",
          FormatBytes(piece.align), " cannot come after ", FormatBytes(total),
          " of other devices; list the devices with the largest alignment "
          "first, or pass a size= that is a multiple of ",
          FormatBytes(piece.align));
    }
    total += piece.bytes;
    align = std::max(align, piece.align);
  }
  // Reserve more addresses than needed, and keep an aligned range in the
  // middle.
  const uint64_t reserved = total + align;
  void* range = mmap(nullptr, reserved, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return MapError(errno, total);
  const auto start = reinterpret_cast<uintptr_t>(range);
  const uintptr_t base = RoundUp(start, align);
  if (base > start) munmap(range, base - start);
  munmap(reinterpret_cast<void*>(base + total),
         start + reserved - base - total);

  Mapping mapping(reinterpret_cast<std::byte*>(base), Unmap{total});
  std::byte* next = mapping.get();
  for (const MapPiece& piece : pieces) {
    const int kind = piece.fd >= 0
                         ? MAP_SHARED
                         : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (mmap(next, piece.bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED,
             piece.fd, static_cast<off_t>(piece.offset)) == MAP_FAILED)
      return MapError(errno, total);
    next += piece.bytes;
  }
  return mapping;
}

Status Prefault(std::byte* begin, uint64_t bytes) {
  int result;
  do {
    result = madvise(begin, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  // EINVAL: a kernel before 5.14. Then first accesses make pages present.
  if (result == 0 || errno == EINVAL) return OkStatus();
  return Error(Code::kResourceExhausted, "cannot make ", FormatBytes(bytes),
               " of the pool present in memory: ",
               std::generic_category().message(errno),
               "; use a smaller size= or free memory");
}

}  // namespace jax_cxl::pool
