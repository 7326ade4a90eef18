#ifndef JAX_CXL_STORE_MEMORY_PERSISTENT_MEMORY_H_
#define JAX_CXL_STORE_MEMORY_PERSISTENT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/pool.h"

namespace jax_cxl::pool {

enum class OpenMode : uint8_t {
  // Takes memory that has the signature, kStoreMagic at a superblock's offset.
  // If no path has it, creates the memory from paths that are missing, empty or
  // all zeros.
  kNormal,
  // Takes memory that has the signature. Fails with kNotFound if all paths are
  // missing, empty or all zeros. Creates nothing.
  kExisting,
  // Like kNormal, but also creates paths that are lost: missing or too short.
  kRepair,
  // Like kRepair, but does not check what the paths hold. Still fails if a
  // living job's pool overlaps the memory or, on a device, if a store overlaps
  // it that begins elsewhere. The other modes check this for new memory.
  kFormat,
};

struct KeptPath;

// Memory that outlives the jobs that use it: files or CXL devices, each mapped
// as a whole. jax_cxl/_store defines the layout of the memory. Every word in
// the memory must have one writer at a time, which the users of this class
// ensure.
//
// A path is *lost* if it is missing or too short although other paths have the
// signature. A path also becomes lost if its file is cut short, deleted or
// replaced, or its memory fails, while it is mapped. An access to missing
// memory finds this at once, and CheckFiles finds it without an access.
// Operations on the devices of a lost path fail. The other devices stay usable.
//
// Thread-safe.
class PersistentMemory {
 public:
  // Maps the memory that `spec` names (not Shm). New files have mode 0600 and
  // spec.bytes zeros, and they stay when the object is destroyed. Holds a
  // shared lock on each path, which shows that the memory is in use. Fails if a
  // device has less than `least_bytes`. If Open fails, all files are as they
  // were. The errors are those of Pool::Create; kDataLoss names the path that
  // holds something else.
  static Result<std::unique_ptr<PersistentMemory>> Open(
      const PoolSpec& spec, OpenMode mode, uint64_t least_bytes = 0);

  ~PersistentMemory();
  PersistentMemory(const PersistentMemory&) = delete;
  PersistentMemory& operator=(const PersistentMemory&) = delete;

  int num_devices() const { return static_cast<int>(devices_.size()); }
  // The number of usable bytes of each device. It is the size of the smallest
  // device.
  uint64_t device_bytes() const { return device_bytes_; }
  const std::string& path(int device) const;
  // The address and the size of the whole mapping, for CUDA.
  std::byte* base() const { return base_; }
  uint64_t total_bytes() const { return total_bytes_; }
  // The Coherence of the memory, for users of this class that read and write
  // the mapping themselves.
  const Coherence& coherence() const { return coherence_; }

  // Returns the address of the range of `bytes` bytes at `offset` of a device,
  // or null if the range does not lie within the device.
  std::byte* At(int device, uint64_t offset, uint64_t bytes) const;

  // If the path of a device is lost, fails with kDataLoss and names the path.
  // Users of this class that read or write the mapping themselves call it after
  // each access: if memory was missing, they have read zeros, and what they
  // have written is gone. It takes some nanoseconds.
  Status CheckIntact(int device) const;
  // Checks whether files still have their names and sizes. A file that was
  // deleted, replaced or cut short counts as lost from then on. Sessions calls
  // it with each heartbeat.
  void CheckFiles() const;

  Status Write(int device, uint64_t offset,
               std::span<const std::byte> from) const;
  // Publishes data that a GPU of this host has written. Call it after the GPU
  // has reported that its writes are done.
  Status PublishDeviceWrites(int device, uint64_t offset, uint64_t bytes) const;
  Status Read(int device, uint64_t offset, std::span<std::byte> to) const;

  // Stores or loads one word of 8 bytes at a multiple of 8. A stored word
  // becomes visible after everything that this thread has published before.
  Status StoreWord(int device, uint64_t offset, uint64_t value) const;
  Result<uint64_t> LoadWord(int device, uint64_t offset) const;

 private:
  PersistentMemory();

  Status Map(const PoolSpec& spec);
  Result<std::byte*> Find(int device, uint64_t offset, uint64_t bytes) const;
  const KeptPath& path_of(int device) const;

  Mapping mapped_;  // Destroyed after the members that use it.
  std::vector<KeptPath> paths_;
  std::vector<ByteRange> devices_;
  int devices_per_path_ = 1;
  uint64_t device_bytes_ = 0;
  std::byte* base_ = nullptr;  // mapped_, or the interposer's
  uint64_t total_bytes_ = 0;
  std::unique_ptr<Interposer> interposer_;  // null except in tests
  Coherence coherence_{CoherenceMode::kCoherent};
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_STORE_MEMORY_PERSISTENT_MEMORY_H_
