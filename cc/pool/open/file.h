#ifndef JAX_CXL_POOL_OPEN_FILE_H_
#define JAX_CXL_POOL_OPEN_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "cc/base/status.h"
#include "cc/pool/open/unique_fd.h"

namespace jax_cxl::pool {

// An open file or device that contains a pool. A lock on it tells other
// processes that it is in use. The kernel drops the lock when this process
// ends.
//
// Not thread-safe.
class PoolFile {
 public:
  enum class Ownership : uint8_t {
    kIfCreated,  // removes the file if this process created it
    kAlways,     // even if it is the leftover of a dead job
  };

  // Opens the file at `path`, or creates it (mode 0600), and locks it for this
  // process alone. Fails if the page at `offset` holds something that is
  // neither a pool nor zeros. Does not change an existing file. To use the file
  // for a pool, call CheckMayTake and then Reserve.
  static Result<PoolFile> OpenForCreate(const std::string& path,
                                        uint64_t offset, Ownership ownership);

  // Opens the file at `path`, and takes a shared lock. If `create` is true,
  // creates a missing file (mode 0600). The destructor removes a file that was
  // created here, unless KeepName is called.
  static Result<PoolFile> OpenShared(const std::string& path, bool create);

  // Opens a device. Does not check its owner, its mode or its contents, because
  // the administrator of the device decides who may open it.
  static Result<PoolFile> OpenDevice(const std::string& path);

  // Locks the part of a device that a pool occupies. The lock is for this
  // process alone if `exclusive` is true, and otherwise shared. Pools in other
  // parts of the device have their own locks. `align` is the device's
  // alignment. If another process holds a conflicting lock on a byte of the
  // part, fails with kAlreadyExists and names that process.
  Status LockRange(uint64_t offset, uint64_t bytes, uint64_t align,
                   bool exclusive);

  // Undoes the changes that this object has made. Removes the name of the file
  // as RemoveName does, unless KeepName was called. If Reserve has enlarged the
  // file, shrinks it to its old size, unless KeepSize was called.
  ~PoolFile();
  PoolFile(PoolFile&&) = default;
  PoolFile& operator=(PoolFile&&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  bool created() const { return created_; }
  // Returns true if the kernel has granted the lock, so that it keeps other
  // processes out. Some file systems that hosts share refuse locks.
  bool locked() const { return locked_; }

  // Returns the size of the file, or 0 on error.
  uint64_t Size() const;

  // Fails with kDataLoss unless a pool may take [offset, offset + bytes). It
  // may if OpenForCreate has found a pool there, complete or unfinished, or if
  // the range holds only zeros. If the file would have to grow, the bytes
  // before `offset` must be zeros, too.
  Status CheckMayTake(uint64_t offset, uint64_t bytes) const;

  // Reserves space for [offset, offset + bytes) (reserve.h). If that fails, an
  // existing file gets its old size back. It also gets its old size back in the
  // destructor, unless KeepSize was called.
  Status Reserve(uint64_t offset, uint64_t bytes);
  void KeepSize() { size_before_.reset(); }
  // Replaces the contents of a file that this process created, or took over
  // with Ownership::kAlways, by one hole of `bytes` bytes.
  Status MakeHole(uint64_t bytes);

  // Replaces the exclusive lock with a shared one, so that other processes can
  // attach.
  Status ShareLock();

  // Returns true if `path` still refers to this file.
  bool StillNamed() const;

  // Removes the name of the file if this process created the file, or opened it
  // with Ownership::kAlways. Idempotent.
  void RemoveName();
  // Makes RemoveName keep the name.
  void KeepName() { owner_ = 0; }

 private:
  PoolFile() = default;

  static Result<PoolFile> Open(const std::string& path, int flags);
  // Opens or creates a file, and locks it by `operation` (LOCK_EX or LOCK_SH).
  static Result<PoolFile> OpenLocked(const std::string& path, bool create,
                                     int operation, uint64_t offset);
  Status CheckOurs() const;
  Status Lock(int operation);
  int TryLock(int operation) const;
  // Returns a text that names the process with a conflicting lock, like
  // "process 12 (python3)".
  std::string DescribeHolder() const;

  UniqueFd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  uint64_t offset_ = 0;  // where the pool starts, if known
  bool created_ = false;
  bool holds_pool_ = false;
  std::optional<uint64_t> size_before_;  // of a file that Reserve has enlarged
  bool locked_ = false;
  uint64_t range_bytes_ = 0;  // locked bytes of a device; 0: a file
  uint64_t align_ = 0;        // of a device
  pid_t owner_ = 0;  // the process that may remove the name; not its children
};

// Fails with kInvalidArgument if `path` names the same file or device as
// `file`.
Status CheckNamedOnce(const PoolFile& file, const std::string& path);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_FILE_H_
