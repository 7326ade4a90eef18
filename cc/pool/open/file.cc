#include "cc/pool/open/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <span>
#include <string>
#include <thread>

#include "cc/base/process_identity.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/open/contents.h"
#include "cc/pool/open/file_error.h"
#include "cc/pool/open/reserve.h"
#include "cc/pool/open/shm.h"

namespace jax_cxl::pool {
namespace {

// O_NONBLOCK is needed because opening a FIFO would block.
constexpr int kOpenFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

// Locking is tried several times, because a sweeper or another creator may hold
// the lock for an instant while it checks the file.
constexpr int kLockAttempts = 20;
constexpr std::chrono::milliseconds kLockPause(5);

// How many times a file may be created or removed by others while this process
// opens it, before this process gives up.
constexpr int kOpenAttempts = 10;

// Returns true if a file begins with data, and these are not a pool.
bool HoldsOtherData(int fd, const std::string& path) {
  std::byte page[kPageBytes] = {};
  const Result<uint64_t> got = ReadAt(fd, path, 0, 0, page);
  if (!got.ok() || *got == 0) return false;
  return HoldsPool(page, *got, path).status().code() == Code::kDataLoss;
}

Result<struct stat> Stat(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(errno, "inspect", path);
  return info;
}

// Returns the description of a lock on a range of bytes, for fcntl.
struct flock RangeLock(short type, uint64_t offset, uint64_t bytes) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(offset);
  range.l_len = static_cast<off_t>(bytes);
  return range;
}

}  // namespace

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
  file.created_ = (flags & O_CREAT) != 0;
  if (file.created_) file.owner_ = getpid();
  return file;
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
                 info.st_uid, ", but this process runs as user ", geteuid(),
                 "; users cannot share a pool: name another path");
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Error(Code::kPermissionDenied, path_, " can be ",
                 info.st_mode & (S_IWGRP | S_IWOTH) ? "written" : "read",
                 " by other users",
                 HoldsOtherData(fd(), path_)
                     ? ", and holds data that are not a pool; name another "
                       "path (or run chmod 600 on it, if it is your store)"
                     : "; run chmod 600 on it or name another path");
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
    locked_ = error == 0;
    // A file system that refuses locks is no error. There, only heartbeats keep
    // other jobs out.
    if (error == 0 || IsRefusal(error)) return OkStatus();
    if (error != EWOULDBLOCK && error != EACCES && error != EINTR)
      return FileError(error, "lock", path_);
    std::this_thread::sleep_for(kLockPause);
  }
  return Error(Code::kAlreadyExists, path_, " is in use by ", DescribeHolder(),
               "; give this job a pool of its own or stop that process");
}

int PoolFile::TryLock(int operation) const {
  if (range_bytes_ == 0)
    return flock(fd(), operation | LOCK_NB) == 0 ? 0 : errno;
  struct flock range = RangeLock(operation == LOCK_EX ? F_WRLCK : F_RDLCK,
                                 offset_, range_bytes_);
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
  uint64_t pool = offset_;
  if (range_bytes_ == 0) {
    for (const HeldLock& lock : HeldLocks())
      if (lock.device == device_ && lock.inode == inode_)
        return DescribeProcess(lock.pid);
  } else {
    struct flock range = RangeLock(F_WRLCK, offset_, range_bytes_);
    if (fcntl(fd(), F_OFD_GETLK, &range) != 0 || range.l_type == F_UNLCK)
      return "another process";
    pool = range.l_start;
  }
  // This kernel does not show the process. The header page of the pool names
  // its creator.
  HeaderPage page = {};
  const Result<uint64_t> got = ReadAt(
      fd(), path_, align_, pool, std::as_writable_bytes(std::span(&page, 1)));
  if (!got.ok() || page.keeper.process.pid <= 0) return "another process";
  return "another job, of " + DescribeProcess(page.keeper.process);
}

Result<PoolFile> PoolFile::OpenLocked(const std::string& path, bool create,
                                      int operation, uint64_t offset) {
  int flags = 0;
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    Result<PoolFile> file = Open(path, flags);
    // If the file does not exist, create it. If it exists, open it. Another
    // process may create or remove it between two attempts.
    if (create && file.status().code() ==
                      (flags == 0 ? Code::kNotFound : Code::kAlreadyExists)) {
      flags ^= O_CREAT | O_EXCL;
      continue;
    }
    if (!file.ok()) return file.status();
    file->offset_ = offset;
    CXL_RETURN_IF_ERROR(file->CheckOurs());
    CXL_RETURN_IF_ERROR(file->Lock(operation));
    if (file->StillNamed()) return file;
    flags = 0;  // A sweeper has removed it.
  }
  return Error(Code::kAlreadyExists, path,
               " was replaced again and again while it was opened; give this "
               "job a pool of its own");
}

Result<PoolFile> PoolFile::OpenForCreate(const std::string& path,
                                         uint64_t offset, Ownership ownership) {
  CXL_ASSIGN_OR_RETURN(PoolFile file,
                       OpenLocked(path, /*create=*/true, LOCK_EX, offset));
  std::byte page[kPageBytes];
  CXL_ASSIGN_OR_RETURN(const uint64_t got,
                       ReadAt(file.fd(), path, 0, offset, page));
  CXL_ASSIGN_OR_RETURN(file.holds_pool_, HoldsPool(page, got, path));
  if (ownership == Ownership::kAlways) file.owner_ = getpid();
  return file;
}

Result<PoolFile> PoolFile::OpenShared(const std::string& path, bool create) {
  return OpenLocked(path, create, LOCK_SH, 0);
}

Result<PoolFile> PoolFile::OpenDevice(const std::string& path) {
  return Open(path, 0);
}

PoolFile::~PoolFile() {
  RemoveName();
  // Restore the size. If this fails, the file only keeps zeros at its end.
  if (fd_.valid() && size_before_)
    (void)!ftruncate(fd(), static_cast<off_t>(*size_before_));
}

Status PoolFile::CheckMayTake(uint64_t offset, uint64_t bytes) const {
  if (holds_pool_) return OkStatus();
  const uint64_t size = Size();
  const uint64_t end = offset + bytes;
  const uint64_t begin = size < end ? 0 : offset;
  CXL_ASSIGN_OR_RETURN(const std::optional<uint64_t> data,
                       FirstData(fd(), path_, 0, begin, std::min(size, end)));
  if (!data) return OkStatus();
  return Error(Code::kDataLoss, path_, " holds other data at byte ", *data,
               ", so it is left alone; name another path, or delete the ",
               "file if you do not need it (memory that was made with another "
               "offset= or size= looks like this too)");
}

uint64_t PoolFile::Size() const {
  struct stat info;
  return fstat(fd(), &info) == 0 ? info.st_size : 0;
}

Status PoolFile::Reserve(uint64_t offset, uint64_t bytes) {
  // If `owner_` is set, this process will remove the file in the end, so the
  // file is new or a leftover. Shorten it, so that it keeps no more memory than
  // the pool needs.
  if (owner_ != 0 && Size() > offset + bytes &&
      ftruncate(fd(), static_cast<off_t>(offset + bytes)) != 0 &&
      !IsRefusal(errno)) {
    return FileError(errno, "shorten", path_);
  }
  const uint64_t before = Size();
  CXL_RETURN_IF_ERROR(
      ReserveSpace(fd(), path_, offset, bytes, /*restore_size=*/!created_));
  if (!created_ && !size_before_ && before < offset + bytes)
    size_before_ = before;
  return OkStatus();
}

Status PoolFile::MakeHole(uint64_t bytes) {
  if (ftruncate(fd(), 0) != 0 ||
      ftruncate(fd(), static_cast<off_t>(bytes)) != 0)
    return FileError(errno, "set the size of", path_);
  return OkStatus();
}

Status PoolFile::ShareLock() {
  // On Linux, replacing the lock is not atomic: another process may take the
  // lock in between. Therefore the creator checks its header again afterwards.
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

Status CheckNamedOnce(const PoolFile& file, const std::string& path) {
  struct stat named, open;
  if (stat(path.c_str(), &named) != 0 || fstat(file.fd(), &open) != 0)
    return OkStatus();  // It is new.
  const bool device = S_ISCHR(open.st_mode) && S_ISCHR(named.st_mode);
  if (device ? open.st_rdev != named.st_rdev
             : open.st_dev != named.st_dev || open.st_ino != named.st_ino)
    return OkStatus();
  return Error(Code::kInvalidArgument, path, " and ", file.path(), " are one ",
               device ? "device" : "file", "; name it only once");
}

}  // namespace jax_cxl::pool
