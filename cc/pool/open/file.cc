#include "cc/pool/open/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/open/lock_holder.h"

namespace jax_cxl::pool {
namespace {

// O_NONBLOCK, because a FIFO of that name must not block us.
constexpr int kOpenFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

// A sweeper or another creator may hold a lock for an instant, to check a file.
constexpr int kLockAttempts = 20;
constexpr std::chrono::milliseconds kLockPause(5);

// A file may vanish between open and lock this often before we give up.
constexpr int kOpenAttempts = 10;

Result<struct stat> Stat(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(errno, "inspect", path);
  return info;
}

Status NoSpace(const std::string& path, uint64_t needed, uint64_t free) {
  return Error(Code::kResourceExhausted, "no space for ", path, ": the pool ",
               "needs ", FormatBytes(needed), " and ", FormatBytes(free),
               " are free; pass a smaller size=, delete files of dead jobs, or "
               "enlarge the file system (for /dev/shm: mount -o "
               "remount,size=..., in a container --shm-size=...)");
}

// EFBIG may also mean that the file system has no room for such a file.
Status TooLarge(const std::string& path, uint64_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur)
    return FileError(EFBIG, "reserve space in", path);
  return Error(Code::kResourceExhausted, "cannot make ", path, " of ",
               FormatBytes(bytes), ": this process may only write files of up ",
               "to ", FormatBytes(limit.rlim_cur),
               "; raise that limit (ulimit -f unlimited) or pass a smaller "
               "size=");
}

uint64_t FreeBytes(int fd) {
  struct statvfs info;
  if (fstatvfs(fd, &info) != 0) return 0;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

bool HasSizeLimit(int fd) {  // a tmpfs of size=0 has none
  struct statvfs info;
  return fstatvfs(fd, &info) == 0 && info.f_blocks != 0;
}

// Returns true for the errors of file systems that lack an operation.
bool IsRefusal(int error) {
  return error == EOPNOTSUPP || error == ENOSYS || error == EINVAL ||
         error == ENOTTY || error == ENOLCK || error == EPERM;
}

// Allocates in pieces. The kernel abandons a piece when a signal arrives, so a
// process with a profiling timer would never finish a large one.
// posix_fallocate is not used, because it reads and writes a file that cannot
// be allocated.
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

// Appends zeros up to `end` bytes. Zeros occupy blocks.
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
  return Error(Code::kInvalidArgument, path, " has ", FormatBytes(size),
               ", the pool needs ", FormatBytes(needed),
               ", and its file system does not let files grow; make the file "
               "with its size by the file system's own tool (for famfs: famfs "
               "creat -s ",
               needed, " -m 0600 ", path, "), then name it");
}

}  // namespace

Status FileError(int error, const std::string& action,
                 const std::string& path) {
  const std::string text = "cannot " + action + " " + path + ": " +
                           std::generic_category().message(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      if (path.starts_with("/dev/") && !path.starts_with("/dev/shm/"))
        return Error(Code::kNotFound, text,
                     "; this host has no such device: python -m jax_cxl doctor "
                     "lists its dax devices");
      return Error(Code::kNotFound, text,
                   "; check the path, and create its directory first");
    case ENXIO:
    case ENODEV:
      return Error(Code::kNotFound, text,
                   "; check that the device is online (daxctl list)");
    case EACCES:
    case EPERM:
    case EROFS:
      return Error(Code::kPermissionDenied, text,
                   "; run as a user who may write there, or name another path");
    case ELOOP:
      return Error(Code::kPermissionDenied, text,
                   "; symbolic links are refused, name the file itself");
    case EEXIST:
      return Error(Code::kAlreadyExists, text, "; name another path");
    case EISDIR:
    case ENAMETOOLONG:
    case EINVAL:
      return Error(Code::kInvalidArgument, text, "; name a file");
    case EMFILE:
    case ENFILE:
      return Error(Code::kResourceExhausted, text,
                   "; raise the limit on open files (ulimit -n)");
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
      return Error(Code::kResourceExhausted, text,
                   "; free some space or name another path");
    default:
      return Error(Code::kInternal, text);
  }
}

Result<PoolFile> PoolFile::Open(const std::string& path, int flags) {
  PoolFile file;
  file.path_ = path;
  file.fd_ = UniqueFd(open(path.c_str(), kOpenFlags | flags, 0600));
  if (!file.fd_.valid()) {
    return FileError(errno, flags & O_CREAT ? "create" : "open", path);
  }
  CXL_ASSIGN_OR_RETURN(const struct stat info, Stat(file.fd(), path));
  file.device_ = info.st_dev;
  file.inode_ = info.st_ino;
  if (flags & O_CREAT) {
    file.created_ = true;
    file.owner_ = getpid();
  }
  return file;
}

Result<PoolFile> PoolFile::OpenOrCreate(const std::string& path) {
  Result<PoolFile> file = Open(path, 0);
  if (file.ok() || file.status().code() != Code::kNotFound) return file;
  // With O_EXCL, a file that another process creates meanwhile is an error.
  return Open(path, O_CREAT | O_EXCL);
}

Status PoolFile::CheckOurs() const {
  CXL_ASSIGN_OR_RETURN(const struct stat info, Stat(fd(), path_));
  if (!S_ISREG(info.st_mode)) {
    return Error(Code::kInvalidArgument, path_,
                 " is not a regular file; name a file, or write "
                 "dax:/dev/daxX.Y for a device");
  }
  if (info.st_uid != geteuid()) {
    return Error(Code::kPermissionDenied, path_, " belongs to user ",
                 info.st_uid, ", this process runs as user ", geteuid(),
                 "; a pool is never shared between users, name another path");
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Error(Code::kPermissionDenied, path_, " can be ",
                 info.st_mode & (S_IWGRP | S_IWOTH) ? "written" : "read",
                 " by other users; run chmod 600 on it or name another path");
  }
  if (info.st_nlink > 1) {
    return Error(Code::kPermissionDenied, path_, " has ", info.st_nlink,
                 " names (hard links), so another program may use it too; "
                 "remove the other names or name another path");
  }
  return OkStatus();
}

Status PoolFile::Lock(int operation) {
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    const int error = TryLock(operation);
    if (error == 0) {
      locked_ = true;
      return OkStatus();
    }
    if (IsRefusal(error)) {  // Only heartbeats keep other jobs out.
      locked_ = false;
      return OkStatus();
    }
    if (error != EWOULDBLOCK && error != EACCES && error != EINTR) {
      return FileError(error, "lock", path_);
    }
    std::this_thread::sleep_for(kLockPause);
  }
  return Error(Code::kAlreadyExists, path_, " is in use by ", DescribeHolder(),
               "; give this job a pool of its own or stop that process");
}

int PoolFile::TryLock(int operation) const {
  if (range_bytes_ == 0)
    return flock(fd(), operation | LOCK_NB) == 0 ? 0 : errno;
  struct flock range = {};
  range.l_type = operation == LOCK_EX ? F_WRLCK : F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(offset_);
  range.l_len = static_cast<off_t>(range_bytes_);
  return fcntl(fd(), F_OFD_SETLK, &range) == 0 ? 0 : errno;
}

Status PoolFile::LockRange(uint64_t offset, uint64_t bytes, uint64_t align,
                           bool exclusive) {
  offset_ = offset;
  range_bytes_ = bytes;
  align_ = align;
  return Lock(exclusive ? LOCK_EX : LOCK_SH);
}

std::string PoolFile::DescribeHolder() const {
  if (range_bytes_ == 0)
    return DescribeLockHolder(fd(), device_, inode_, offset_);
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(offset_);
  range.l_len = static_cast<off_t>(range_bytes_);
  if (fcntl(fd(), F_OFD_GETLK, &range) != 0 || range.l_type == F_UNLCK)
    return "another process";
  return DescribeKeeper(fd(), range.l_start, align_);
}

Result<PoolFile> PoolFile::OpenForCreate(const std::string& path,
                                         uint64_t offset, Ownership ownership) {
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    Result<PoolFile> file = OpenOrCreate(path);
    if (file.status().code() == Code::kAlreadyExists) continue;
    if (!file.ok()) return file.status();
    file->offset_ = offset;
    CXL_RETURN_IF_ERROR(file->CheckOurs());
    CXL_RETURN_IF_ERROR(file->Lock(LOCK_EX));
    if (!file->StillNamed()) continue;  // a sweeper has removed it

    std::byte page[kPageBytes];
    const ssize_t got =
        pread(file->fd(), page, sizeof(page), static_cast<off_t>(offset));
    if (got < 0) return FileError(errno, "read", path);
    CXL_RETURN_IF_ERROR(CheckMayOverwrite(page, got, path));
    if (ownership == Ownership::kAlways) file->owner_ = getpid();
    return file;
  }
  return Error(Code::kAlreadyExists, path,
               " was replaced again and again while it was opened; give this "
               "job a pool of its own");
}

Result<PoolFile> PoolFile::OpenForAttach(const std::string& path) {
  CXL_ASSIGN_OR_RETURN(PoolFile file, Open(path, 0));
  CXL_RETURN_IF_ERROR(file.CheckOurs());
  CXL_RETURN_IF_ERROR(file.Lock(LOCK_SH));
  return file;
}

Result<PoolFile> PoolFile::OpenToKeep(const std::string& path) {
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    Result<PoolFile> file = OpenOrCreate(path);
    // Another process may create it at the same time.
    if (file.status().code() == Code::kAlreadyExists) continue;
    if (!file.ok()) return file.status();
    file->KeepName();
    CXL_RETURN_IF_ERROR(file->CheckOurs());
    CXL_RETURN_IF_ERROR(file->Lock(LOCK_SH));
    return file;
  }
  return Error(Code::kAlreadyExists, path,
               " was replaced again and again while it was opened");
}

Result<PoolFile> PoolFile::OpenDevice(const std::string& path) {
  return Open(path, 0);
}

uint64_t PoolFile::Size() const {
  struct stat info;
  return fstat(fd(), &info) == 0 ? info.st_size : 0;
}

Status PoolFile::Reserve(uint64_t offset, uint64_t bytes) {
  // A leftover that this process will remove need not keep more memory than the
  // pool needs.
  if (owner_ != 0 && Size() > offset + bytes &&
      ftruncate(fd(), static_cast<off_t>(offset + bytes)) != 0 &&
      !IsRefusal(errno)) {
    return FileError(errno, "shorten", path_);
  }
  CXL_ASSIGN_OR_RETURN(const struct stat before, Stat(fd(), path_));
  // Check the free space first: filling /dev/shm before giving up would take
  // long and starve other processes meanwhile.
  const uint64_t present = static_cast<uint64_t>(before.st_blocks) * 512;
  const uint64_t missing = bytes > present ? bytes - present : 0;
  // Some file systems do not count the blocks of an existing file completely,
  // so the check applies only to files that grow.
  const bool grows = static_cast<uint64_t>(before.st_size) < offset + bytes;
  if (grows && HasSizeLimit(fd()) && missing > FreeBytes(fd())) {
    return NoSpace(path_, missing, FreeBytes(fd()));
  }
  int error = Allocate(fd(), offset, bytes);
  if (IsRefusal(error)) {
    const auto size = static_cast<uint64_t>(before.st_size);
    error = Append(fd(), size, offset + bytes);
    if (error != 0 && error != ENOSPC && error != EDQUOT && error != EFBIG)
      return CannotGrow(path_, size, offset + bytes);
  }
  if (error == 0) return OkStatus();
  if (!created_ && ftruncate(fd(), before.st_size) != 0) {
    return FileError(errno, "restore the size of", path_);
  }
  if (error == EFBIG) return TooLarge(path_, offset + bytes);
  if (error == ENOSPC || error == EDQUOT) {
    return NoSpace(path_, missing, FreeBytes(fd()));
  }
  return FileError(error, "reserve space in", path_);
}

Status PoolFile::ShareLock() {
  // Not atomic on Linux: another process may take the lock in between.
  // Therefore the creator checks its header again afterwards.
  return Lock(LOCK_SH);
}

bool PoolFile::StillNamed() const {
  struct stat info;
  return lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
         info.st_ino == inode_;
}

void PoolFile::RemoveName() {
  if (fd_.valid() && owner_ == getpid() && StillNamed()) unlink(path_.c_str());
  owner_ = 0;
}

}  // namespace jax_cxl::pool
