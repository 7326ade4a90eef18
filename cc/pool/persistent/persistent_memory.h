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
// as a whole, without a layout of its own (jax_cxl/_snapshots has one). Every
// word in it has one writer at a time; nothing here keeps two writers apart.
//
// Thread-safe.
class PersistentMemory {
 public:
  // Maps the memory that `spec` names (not kShm). Creates files that do not
  // exist, of mode 0600 and spec.bytes zeros, and lets shorter files grow; they
  // keep their names. A shared lock says that the memory is in use.
  // Errors: as Pool::Create.
  static Result<std::unique_ptr<PersistentMemory>> Open(const PoolSpec& spec);
  // For tests: with `dax` in place of this machine's devices.
  static Result<std::unique_ptr<PersistentMemory>> Open(const PoolSpec& spec,
                                                        const DaxSystem& dax);

  ~PersistentMemory();
  PersistentMemory(const PersistentMemory&) = delete;
  PersistentMemory& operator=(const PersistentMemory&) = delete;

  int num_devices() const { return static_cast<int>(devices_.size()); }
  // Of each device: the smallest one's.
  uint64_t device_bytes() const { return device_bytes_; }
  // Of the whole mapping, for CUDA.
  std::byte* base() const { return base_; }
  uint64_t total_bytes() const { return total_bytes_; }

  // Where `bytes` bytes at `offset` of a device lie in this process, or null if
  // they leave the device.
  std::byte* At(int device, uint64_t offset, uint64_t bytes) const;

  // Copies bytes into the memory, and publishes them.
  Status Write(int device, uint64_t offset,
               std::span<const std::byte> from) const;
  // Publishes what a GPU of this host has written there, and has said so.
  Status PublishDeviceWrites(int device, uint64_t offset, uint64_t bytes) const;
  // Acquires bytes of the memory, and copies them.
  Status Read(int device, uint64_t offset, std::span<std::byte> to) const;

  // One word of 8 bytes at a multiple of 8: visible after everything that this
  // thread has published before.
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
  std::unique_ptr<Interposer> interposer_;  // null but in tests
  Coherence coherence_{CoherenceMode::kCoherent};
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_PERSISTENT_PERSISTENT_MEMORY_H_
