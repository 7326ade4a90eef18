#ifndef JAX_CXL_POOL_PERSISTENT_PERSISTENT_MEMORY_H_
#define JAX_CXL_POOL_PERSISTENT_PERSISTENT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/mapping/mapping_guard.h"
#include "cc/pool/open/file.h"
#include "cc/pool/pool.h"

namespace jax_cxl::pool {

struct DaxSystem;

// Memory that outlives the jobs that use it: files or CXL devices, each mapped
// as a whole. It has no layout of its own; jax_cxl/_snapshots defines one.
// Every word in it must have one writer at a time, which the users of this
// class ensure.
//
// Thread-safe.
class PersistentMemory {
 public:
  // Maps the memory that `spec` names (not kShm). Creates missing files with
  // mode 0600 and spec.bytes zeros, and lets shorter files grow. Files keep
  // their names. Holds a shared lock, which says that the memory is in use.
  // Errors: as for Pool::Create.
  static Result<std::unique_ptr<PersistentMemory>> Open(const PoolSpec& spec);
  // For tests: uses `dax` in place of this machine's devices.
  static Result<std::unique_ptr<PersistentMemory>> Open(const PoolSpec& spec,
                                                        const DaxSystem& dax);

  ~PersistentMemory();
  PersistentMemory(const PersistentMemory&) = delete;
  PersistentMemory& operator=(const PersistentMemory&) = delete;

  int num_devices() const { return static_cast<int>(devices_.size()); }
  // Usable bytes of each device: all devices count as large as the smallest.
  uint64_t device_bytes() const { return device_bytes_; }
  // The whole mapping, for CUDA.
  std::byte* base() const { return base_; }
  uint64_t total_bytes() const { return total_bytes_; }

  // Returns the address of `bytes` bytes at `offset` of a device, or null if
  // they leave the device.
  std::byte* At(int device, uint64_t offset, uint64_t bytes) const;

  // Copies bytes into the memory, and publishes them.
  Status Write(int device, uint64_t offset,
               std::span<const std::byte> from) const;
  // Publishes data that a GPU of this host has written, after the GPU has said
  // so.
  Status PublishDeviceWrites(int device, uint64_t offset, uint64_t bytes) const;
  // Acquires bytes of the memory, and copies them to `to`.
  Status Read(int device, uint64_t offset, std::span<std::byte> to) const;

  // Stores or loads one word of 8 bytes at a multiple of 8. A stored word
  // becomes visible after everything that this thread has published before.
  Status StoreWord(int device, uint64_t offset, uint64_t value) const;
  Result<uint64_t> LoadWord(int device, uint64_t offset) const;

 private:
  PersistentMemory() = default;

  Status OpenFiles(const PoolSpec& spec);
  Result<std::vector<MapPiece>> Measure(const PoolSpec& spec,
                                        const DaxSystem& dax);
  Status Map(const PoolSpec& spec, const std::vector<MapPiece>& pieces);
  Result<std::byte*> Find(int device, uint64_t offset, uint64_t bytes) const;
  Status CheckIntact() const;

  std::vector<PoolFile> files_;
  std::vector<ByteRange> devices_;
  uint64_t device_bytes_ = 0;
  std::byte* mapped_ = nullptr;
  std::byte* base_ = nullptr;  // mapped_, or the interposer's
  uint64_t total_bytes_ = 0;
  std::unique_ptr<MappingGuard> guard_;
  std::unique_ptr<Interposer> interposer_;  // null except in tests
  Coherence coherence_{CoherenceMode::kCoherent};
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_PERSISTENT_PERSISTENT_MEMORY_H_
