#ifndef JAX_CXL_POOL_OPEN_FILE_H_
#define JAX_CXL_POOL_OPEN_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "cc/base/status.h"
#include "cc/pool/open/unique_fd.h"

namespace jax_cxl::pool {

// An open file or device that a pool lies in. The lock on it tells other
// processes that it is in use; the kernel drops it when this process ends.
// Not thread-safe.
class PoolFile {
 public:
  enum class Ownership : uint8_t {
    kIfCreated,  // the file goes again if this process created it
    kAlways,     // and if it is the leftover of a dead job
  };

  // Opens the file at `path`, creates it (mode 0600) if there is none, and
  // locks it for this process alone. What lies at `offset` must be nothing,
  // zeros or an old pool. Changes nothing in a file that exists.
  static Result<PoolFile> OpenForCreate(const std::string& path,
                                        uint64_t offset, Ownership ownership);

  // Opens the file of a pool that another process made, and shares its lock.
  static Result<PoolFile> OpenForAttach(const std::string& path);

  // Opens the file at `path`, creates it (mode 0600) if there is none, and
  // shares its lock. The file stays, whoever created it.
  static Result<PoolFile> OpenToKeep(const std::string& path);

  // Opens a device. No ownership, mode or contents are checked: its
  // administrator decides who may open it.
  static Result<PoolFile> OpenDevice(const std::string& path);

  // Locks the part of a device that a pool takes, for this process alone if
  // `exclusive`. Pools in other parts of the device have locks of their own.
  // `align` is the device's. kAlreadyExists names the holder.
  Status LockRange(uint64_t offset, uint64_t bytes, uint64_t align,
                   bool exclusive);

  ~PoolFile() { RemoveName(); }
  PoolFile(PoolFile&&) = default;
  PoolFile& operator=(PoolFile&&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  bool created() const { return created_; }
  // Whether the kernel keeps other processes out by a lock. Some file systems
  // that hosts share refuse locks.
  bool locked() const { return locked_; }
  dev_t device() const { return device_; }
  ino_t inode() const { return inode_; }

  // The size of the file, 0 on error.
  uint64_t Size() const;

  // Makes sure that [offset, offset + bytes) exists and has memory or disk
  // blocks behind it, so that no access can raise SIGBUS later. A file that was
  // there before keeps its size when that fails. Works on file systems that
  // cannot allocate or truncate (famfs): there the file needs its size before.
  Status Reserve(uint64_t offset, uint64_t bytes);

  // Lets other processes attach: an exclusive lock becomes a shared one.
  Status ShareLock();

  // Whether `path` still leads to this file.
  bool StillNamed() const;

  // Removes the name if it is this process's to remove. Idempotent.
  void RemoveName();
  // Leaves the name for good.
  void KeepName() { owner_ = 0; }

 private:
  PoolFile() = default;

  static Result<PoolFile> Open(const std::string& path, int flags);
  static Result<PoolFile> OpenOrCreate(const std::string& path);
  Status CheckOurs() const;
  // LOCK_EX or LOCK_SH.
  Status Lock(int operation);
  int TryLock(int operation) const;
  // "process 12 (python3)" or what else is known of who holds the lock.
  std::string DescribeHolder() const;

  UniqueFd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  uint64_t offset_ = 0;  // where the pool starts, if known
  bool created_ = false;
  bool locked_ = false;
  uint64_t range_bytes_ = 0;  // of a device: what is locked; 0: a file
  uint64_t align_ = 0;        // of a device
  pid_t owner_ = 0;  // the process that may remove the name; not its children
};

// An error of code and text that follow from `error`, an errno value.
Status FileError(int error, const std::string& action, const std::string& path);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_FILE_H_
