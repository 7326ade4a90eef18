#ifndef JAX_CXL_TESTING_INCOHERENT_SHADOW_H_
#define JAX_CXL_TESTING_INCOHERENT_SHADOW_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/layout/geometry.h"
#include "cc/testing/incoherent/region.h"

namespace jax_cxl::pool {

// What one host's cache holds of a shared memory: a private copy that the
// process works on, and what each line was when it was last exchanged with the
// shared memory. A line is dirty where the two differ.
//
// Lines move as whole lines, but word by word: nothing smaller than 8 bytes is
// torn, everything larger may be. A store of the process is never lost, however
// it races with the exchange of its line.
//
// Breaches of the protocol end the process with a message: two hosts that store
// to one line (whoever writes back last would undo the other's store), stores
// to another rank's memory, a slot dropped while it has stores that were never
// written back.
//
// Any thread.
class Shadow {
 public:
  static constexpr uint64_t kLine = 64;
  // Lines of one block are exchanged under one lock.
  static constexpr uint64_t kBlock = 4096;

  // `shared` must stay mapped for longer than this object lives.
  static Result<std::unique_ptr<Shadow>> Create(std::byte* shared,
                                                uint64_t bytes,
                                                std::vector<ByteRange> extents,
                                                int world_size);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  const RegionMap& regions() const { return regions_; }
  // Where in the pool an address of the shadow is.
  uint64_t OffsetOf(const void* address) const {
    return static_cast<const std::byte*>(address) - base_;
  }

  // The pool is formatted: from now on each line has one writer. A rank is this
  // host's from when this host writes its RankInfo.
  void Seal() { sealed_ = true; }

  // Writes back the dirty lines that the range touches.
  void WriteBack(uint64_t offset, uint64_t bytes);

  // A device of this host writes to the range. Its writes go into the cache.
  void DeviceWrite(uint64_t offset, const std::byte* from, uint64_t bytes);
  // A device of this host reads the range: what the cache holds of it.
  void DeviceRead(uint64_t offset, std::byte* to, uint64_t bytes) const;
  // Counts the writes of devices. A write-back that a thread does not keep
  // behind them by a fence may have happened before the last of them.
  uint64_t device_writes() const { return device_writes_; }
  uint64_t LastDeviceWrite(uint64_t offset, uint64_t bytes) const;

  // Makes the lines that the range touches what the shared memory holds; dirty
  // ones are written back first (a processor does so too).
  void Drop(uint64_t offset, uint64_t bytes);

  // The same for lines that are not dirty: what a cache may do at any time.
  void Refresh(uint64_t offset, uint64_t bytes);

 private:
  Shadow(std::byte* shared, uint64_t bytes, std::vector<ByteRange> extents,
         int world_size, std::byte* base, std::byte* exchanged);

  // The following run under the block's lock.
  bool IsDirty(uint64_t line) const;
  void WriteBackLine(uint64_t line, uint64_t tear);
  void PullLine(uint64_t line, uint64_t tear);
  template <typename Exchange>
  void ForLines(uint64_t offset, uint64_t bytes, const Exchange& exchange);
  [[noreturn]] void Breach(uint64_t offset, const std::string& what) const;

  std::byte* shared_;
  uint64_t bytes_;
  std::byte* base_;
  std::byte* exchanged_;
  RegionMap regions_;
  std::atomic<bool> sealed_{false};
  std::vector<std::atomic<bool>> claimed_;
  std::array<std::mutex, 64> locks_;
  std::atomic<uint64_t> device_writes_{0};
  // By line: the number of the last write of a device, 0 for none. Untouched
  // pages cost no memory.
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::atomic<uint64_t>[], Free> written_by_device_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_INCOHERENT_SHADOW_H_
