#include "cc/pool/open/reserve.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/open/file_error.h"

namespace jax_cxl::pool {
namespace {

Status NoSpace(const std::string& path, uint64_t needed, uint64_t free) {
  return Error(Code::kResourceExhausted, "no space for ", path, ": it needs ",
               FormatBytes(needed), ", but only ", FormatBytes(free),
               " are free; remove what dead jobs have left (python -m jax_cxl "
               "clean), pass a smaller size= (for a pool: "
               "JAX_CXL_POOL='shm:?size=...'), or enlarge the file system (for "
               "/dev/shm: mount -o remount,size=..., in a container "
               "--shm-size=...)");
}

// Returns the error for EFBIG, which has two causes: the process may not write
// files of this size, or the file system does not allow them.
Status TooLarge(const std::string& path, uint64_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur)
    return Error(Code::kInvalidArgument, "cannot make ", path, " of ",
                 FormatBytes(bytes), ": its file system does not allow files ",
                 "of this size; pass a smaller size= or offset=");
  return Error(Code::kResourceExhausted, "cannot make ", path, " of ",
               FormatBytes(bytes), ": this process may only write files of up ",
               "to ", FormatBytes(limit.rlim_cur),
               "; raise that limit (ulimit -f unlimited) or pass a smaller "
               "size=");
}

// Returns how many bytes of the file system are free. Returns nothing if it has
// no limit, like a tmpfs with size=0.
std::optional<uint64_t> FreeBytes(int fd) {
  struct statvfs info;
  if (fstatvfs(fd, &info) != 0 || info.f_blocks == 0) return std::nullopt;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

// Allocates the range in pieces, and returns an errno value. The kernel
// abandons fallocate when a signal arrives, so a process with a profiling timer
// would never finish a large range. posix_fallocate is not used, because it
// reads and writes the file if the file system cannot allocate.
int Allocate(int fd, uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kPiece = uint64_t{64} << 20;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t piece = std::min(kPiece, bytes - done);
    if (fallocate(fd, 0, static_cast<off_t>(offset + done),
                  static_cast<off_t>(piece)) == 0) {
      done += piece;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// Appends zeros until the file has `end` bytes, and returns an errno value.
// Unlike holes, zeros that are written occupy blocks.
int Append(int fd, uint64_t size, uint64_t end) {
  const std::vector<std::byte> zeros(uint64_t{1} << 20);
  while (size < end) {
    const ssize_t written =
        pwrite(fd, zeros.data(), std::min<uint64_t>(zeros.size(), end - size),
               static_cast<off_t>(size));
    if (written > 0) {
      size += written;
    } else if (written == 0 || errno != EINTR) {
      return written == 0 ? EIO : errno;
    }
  }
  return 0;
}

Status CannotGrow(const std::string& path, uint64_t size, uint64_t needed) {
  return Error(
      Code::kInvalidArgument, path, " has ", FormatBytes(size),
      ", but it needs ", FormatBytes(needed),
      ", and its file system does not let files grow; make the file "
      "with its size, with the file system's own tool (for famfs: famfs "
      "creat -s ",
      needed, " -m 0600 ", path, "), then name it");
}

}  // namespace

Status ReserveSpace(int fd, const std::string& path, uint64_t offset,
                    uint64_t bytes, bool restore_size) {
  // Before `present`: another rank may reserve the same space meanwhile.
  const std::optional<uint64_t> free = FreeBytes(fd);
  struct stat before;
  if (fstat(fd, &before) != 0) return FileError(errno, "inspect", path);
  // Check the free space first. Otherwise this process would fill /dev/shm
  // before it fails, which takes long and leaves no memory to other processes
  // meanwhile.
  const uint64_t present = static_cast<uint64_t>(before.st_blocks) * 512;
  const uint64_t missing = bytes > present ? bytes - present : 0;
  // Some file systems, but not tmpfs, count too few blocks for an existing
  // file. There, the check applies only to files that grow.
  struct statfs system = {};
  const bool counts =
      static_cast<uint64_t>(before.st_size) < offset + bytes ||
      (fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC);
  if (counts && free && missing > *free) return NoSpace(path, missing, *free);
  int error = Allocate(fd, offset, bytes);
  if (IsRefusal(error)) {
    const auto size = static_cast<uint64_t>(before.st_size);
    error = Append(fd, size, offset + bytes);
    if (error != 0 && error != ENOSPC && error != EDQUOT && error != EFBIG)
      return CannotGrow(path, size, offset + bytes);
  }
  if (error == 0) return OkStatus();
  if (restore_size && ftruncate(fd, before.st_size) != 0) {
    return FileError(errno, "restore the size of", path);
  }
  if (error == EFBIG) return TooLarge(path, offset + bytes);
  if (error == ENOSPC || error == EDQUOT) {
    return NoSpace(path, missing, FreeBytes(fd).value_or(0));
  }
  return FileError(error, "reserve space in", path);
}

bool CanFillHoles(int fd) {
  return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1) == 0;
}

}  // namespace jax_cxl::pool
