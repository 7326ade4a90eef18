#include "cc/store/cuda/device_cache.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/current_device.h"
#include "cc/store/cuda/kernels/take.h"

namespace jax_cxl::table {
namespace {

// How many entries the log has for each slot of the cache. A log of this length
// shows which rows are taken often, and takes little memory.
constexpr uint64_t kLogOfSlot = 8;
constexpr char kWhat[] = "make a cache of rows";

uint64_t RoundUp(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Result<std::shared_ptr<DeviceCache>> DeviceCache::Make(int device,
                                                       uint64_t rows,
                                                       uint64_t row_bytes) {
  std::shared_ptr<DeviceCache> cache(new DeviceCache(device));
  CXL_RETURN_IF_ERROR(cache->Open(rows, row_bytes));
  return cache;
}

Status DeviceCache::Open(uint64_t cached_rows, uint64_t row_bytes) {
  constexpr uint64_t kSlots = CacheView::kSlotsOfBucket;
  view_.buckets = std::max<uint64_t>((cached_rows + kSlots - 1) / kSlots, 1);
  const uint64_t slots = view_.buckets * kSlots;
  view_.log_size = slots * kLogOfSlot;
  const cuda::CurrentDevice current(device_);
  CXL_ASSIGN_OR_RETURN(stream_, cuda::MakeStream());
  const uint64_t data = RoundUp(slots * row_bytes);
  const uint64_t rows = RoundUp(slots * sizeof(int64_t));
  const uint64_t log = RoundUp(view_.log_size * sizeof(int64_t));
  const uint64_t bytes = data + rows + log + 2 * sizeof(uint64_t);
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess) {
    cudaGetLastError();  // Later calls do not report it again.
    return Error(Code::kResourceExhausted, "a cache of rows needs ", bytes,
                 " bytes, which GPU ", device_,
                 " does not have free. Choose smaller cache_rows, or a smaller "
                 "XLA_PYTHON_CLIENT_MEM_FRACTION");
  }
  memory_ = static_cast<std::byte*>(memory);
  data_ = memory_;
  rows_ = reinterpret_cast<int64_t*>(memory_ + data);
  auto* counts = memory_ + data + rows + log;
  view_.data = data_;
  view_.rows = rows_;
  view_.log = reinterpret_cast<int64_t*>(memory_ + data + rows);
  view_.counts = reinterpret_cast<unsigned long long*>(counts);
  static_assert(kOutside == -1);
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemsetAsync(rows_, 0xff, rows + log, stream_.get()), kWhat));
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemsetAsync(counts, 0, 2 * sizeof(uint64_t), stream_.get()), kWhat));
  return cuda::CudaStatus(cudaStreamSynchronize(stream_.get()), kWhat);
}

DeviceCache::~DeviceCache() {
  const cuda::CurrentDevice current(device_);
  stream_.reset();
  cudaFree(memory_);
}

Status DeviceCache::Copy(void* to, const void* from, uint64_t bytes) {
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()),
      "copy from or to a cache of rows"));
  return cuda::CudaStatus(cudaStreamSynchronize(stream_.get()),
                          "copy from or to a cache of rows");
}

CacheView DeviceCache::View(uint64_t count) {
  if (!used_) return {};
  CacheView view = view_;
  view.log_at = log_at_.fetch_add(count, std::memory_order_relaxed);
  return view;
}

void DeviceCache::SetUsed(const Column& column, bool used) {
  std::lock_guard lock(column.in_use);
  used_ = used;
}

Status DeviceCache::Refresh(const Column& column) {
  std::lock_guard lock(refresh_mutex_);
  SetUsed(column, false);
  CXL_ASSIGN_OR_RETURN(std::vector<int64_t> log, ReadLog());
  CXL_RETURN_IF_ERROR(Fill(column, ChooseRows(std::move(log), view_.buckets)));
  SetUsed(column, true);
  return OkStatus();
}

Result<DeviceCache::Counts> DeviceCache::counts() {
  const cuda::CurrentDevice current(device_);
  uint64_t counts[2];
  CXL_RETURN_IF_ERROR(Copy(counts, view_.counts, sizeof(counts)));
  return Counts{counts[0], counts[1]};
}

Result<std::vector<int64_t>> DeviceCache::ReadLog() {
  const cuda::CurrentDevice current(device_);
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaDeviceSynchronize(), "wait for a GPU"));
  std::vector<int64_t> log(view_.log_size);
  CXL_RETURN_IF_ERROR(
      Copy(log.data(), view_.log, log.size() * sizeof(int64_t)));
  return log;
}

Status DeviceCache::Fill(const Column& column, std::span<const int64_t> rows) {
  const cuda::CurrentDevice current(device_);
  CXL_RETURN_IF_ERROR(Copy(rows_, rows.data(), rows.size_bytes()));
  // The id of an empty slot is -1, which names the last row. So the slot gets a
  // copy of that row, but no lookup finds the copy.
  const DeviceTake take = {.data = column.data,
                           .rows = column.rows,
                           .row_bytes = column.row_bytes,
                           .ids = rows_,
                           .wide = true,
                           .count = rows.size(),
                           .output = data_};
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(LaunchTake(take, stream_.get()), "fill a cache"));
  return cuda::CudaStatus(cudaStreamSynchronize(stream_.get()), "fill a cache");
}

}  // namespace jax_cxl::table
