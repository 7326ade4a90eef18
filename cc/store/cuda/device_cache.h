#ifndef JAX_CXL_STORE_CUDA_DEVICE_CACHE_H_
#define JAX_CXL_STORE_CUDA_DEVICE_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"
#include "cc/store/table/column.h"
#include "cc/store/table/lookup.h"

namespace jax_cxl::table {

// Holds copies of the table rows that a GPU recently took most often. The
// copies are in the memory of this GPU. The rows of the table never change.
//
// The cache is empty until the first call of Refresh. A call that takes rows
// never changes the copies. It only notes in a log which rows it took.
//
// Thread-safe.
class DeviceCache {
 public:
  struct Counts {
    uint64_t wanted = 0;  // rows that were looked for
    uint64_t found = 0;
  };

  static Result<std::shared_ptr<DeviceCache>> Make(int device, uint64_t rows,
                                                   uint64_t row_bytes);
  ~DeviceCache();
  DeviceCache(const DeviceCache&) = delete;
  DeviceCache& operator=(const DeviceCache&) = delete;

  // Returns the cache for a call that takes `count` rows. While Refresh fills
  // the cache, returns an empty view, so that the call takes all rows from the
  // table. The caller holds `column.in_use`.
  CacheView View(uint64_t count);

  // Replaces the copies with copies of the rows that occur most often in the
  // log. Meanwhile, calls take rows without the cache.
  Status Refresh(const Column& column);

  Result<Counts> counts();

 private:
  explicit DeviceCache(int device) : device_(device) {}

  Status Open(uint64_t rows, uint64_t row_bytes);
  void SetUsed(const Column& column, bool used);
  // Waits for all calls on the GPU. These calls may wait for calls that other
  // threads of this process have yet to start. So the caller must not hold a
  // lock that those threads need.
  Result<std::vector<int64_t>> ReadLog();
  // Copies rows into the cache. rows[i] is the row for slot i, or kOutside.
  // Called while no call uses the cache.
  Status Fill(const Column& column, std::span<const int64_t> rows);
  Status Copy(void* to, const void* from, uint64_t bytes);

  const int device_;
  cuda::Stream stream_;
  std::byte* memory_ = nullptr;
  int64_t* rows_ = nullptr;
  std::byte* data_ = nullptr;
  CacheView view_;

  std::mutex refresh_mutex_;
  bool used_ = true;  // guarded by column.in_use
  std::atomic<uint64_t> log_at_ = 0;
};

}  // namespace jax_cxl::table

#endif  // JAX_CXL_STORE_CUDA_DEVICE_CACHE_H_
