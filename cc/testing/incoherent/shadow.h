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

// The contents of one host's cache of a shared memory. It consists of a private
// copy of the memory, which the process uses, and of the state that each line
// had when it was last exchanged with the shared memory. A line is dirty if the
// two differ.
//
// A line moves as a whole, but word by word. So words of 8 bytes stay whole,
// while another host may see a part of a line old and a part new. A store of
// the process is never lost, even if it races with the exchange of its line.
//
// A violation of the protocol ends the process with a message: two hosts store
// to one line (the last write-back would undo the other's store), a host stores
// to another rank's memory, or a slot is dropped while it has stores that were
// never written back.
//
// Thread-safe.
class Shadow {
 public:
  static constexpr uint64_t kLine = 64;
  // One lock covers the exchange of all lines of a block.
  static constexpr uint64_t kBlock = 4096;

  // `shared` must stay mapped while this object lives.
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
  // Returns the offset in the pool of an address in the shadow.
  uint64_t OffsetOf(const void* address) const {
    return static_cast<const std::byte*>(address) - base_;
  }

  // Call it once the pool has been formatted. After that, only one host may
  // write to a line. A rank belongs to this host once this host has written its
  // RankInfo.
  void Seal() { sealed_ = true; }

  // Writes back the dirty lines that the range touches.
  void WriteBack(uint64_t offset, uint64_t bytes);

  // A device of this host writes to the range. The writes go into the cache.
  void DeviceWrite(uint64_t offset, const std::byte* from, uint64_t bytes);
  // A device of this host reads the range from the cache.
  void DeviceRead(uint64_t offset, std::byte* to, uint64_t bytes) const;
  // Returns the number of writes by devices so far. A thread notes this number
  // at each full fence. If a device has written since the thread's last fence,
  // a write-back by the thread may have happened before that write, and then
  // does not include it.
  uint64_t device_writes() const { return device_writes_; }
  uint64_t LastDeviceWrite(uint64_t offset, uint64_t bytes) const;

  // Drops the lines that the range touches, and fetches them from the shared
  // memory again. Writes dirty lines back first, as a processor does.
  void Drop(uint64_t offset, uint64_t bytes);

  // Copies those lines that the range touches and that are not dirty from the
  // shared memory. A cache may do this at any time.
  void Refresh(uint64_t offset, uint64_t bytes);

 private:
  Shadow(std::byte* shared, uint64_t bytes, std::vector<ByteRange> extents,
         int world_size, std::byte* base, std::byte* exchanged);

  // The caller of these functions holds the lock of the line's block.
  bool IsDirty(uint64_t line) const;
  void WriteBackLine(uint64_t line, uint64_t tear);
  void PullLine(uint64_t line, uint64_t tear);
  template <typename Move>
  void ForLines(uint64_t offset, uint64_t bytes, const Move& move);
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
  // For each line: the number of the last device write, or 0. Pages that are
  // never written cost no memory.
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::atomic<uint64_t>[], Free> written_by_device_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_INCOHERENT_SHADOW_H_
