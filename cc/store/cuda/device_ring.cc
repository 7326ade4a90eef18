#include "cc/store/cuda/device_ring.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/current_device.h"
#include "cc/base/status.h"
#include "cc/store/cuda/kernels/get.h"
#include "cc/store/ring/ring.h"

namespace jax_cxl::comm {
using cuda::Record;
using cuda::StreamWait;

Result<std::shared_ptr<DeviceRing>> DeviceRing::Create(
    uint32_t number, int device, std::vector<std::byte*> parts, uint64_t rows) {
  const cuda::CurrentDevice current(device);
  std::shared_ptr<DeviceRing> ring(
      new DeviceRing(number, device, std::move(parts), rows));
  CXL_RETURN_IF_ERROR(ring->Prepare());
  return ring;
}

DeviceRing::DeviceRing(uint32_t number, int device,
                       std::vector<std::byte*> parts, uint64_t rows)
    : number_(number),
      device_(device),
      parts_(std::move(parts)),
      ring_(number, device, {static_cast<int>(parts_.size()), rows}) {}

Status DeviceRing::Prepare() {
  if (parts_.size() > tier::DeviceGet::kMostDevices)
    return Error(Code::kUnimplemented, "the store has ", parts_.size(),
                 " devices, but GPUs get residuals from at most ",
                 tier::DeviceGet::kMostDevices,
                 ": use a store of fewer devices");
  CXL_ASSIGN_OR_RETURN(error_, AllocatePinned<tier::GetError>(1));
  CXL_ASSIGN_OR_RETURN(out_, cuda::MakeStream());
  CXL_ASSIGN_OR_RETURN(in_, cuda::MakeStream());
  CXL_ASSIGN_OR_RETURN(last_put_, cuda::MakeEvent());
  return OkStatus();
}

DeviceRing::~DeviceRing() {
  const cuda::CurrentDevice current(device_);
  cudaDeviceSynchronize();
  staging_.clear();
  out_.reset();
  in_.reset();
}

Status DeviceRing::Put(int32_t number, const std::byte* value, uint64_t bytes,
                       tier::DeviceHandle* handle, cudaStream_t stream) {
  const cuda::CurrentDevice current(device_);
  std::lock_guard lock(mutex_);
  CXL_RETURN_IF_ERROR(CheckEarlierGets());
  if (bytes == 0) return OkStatus();  // Nobody reads its handle.
  Staging& staging = staging_[number];
  CXL_RETURN_IF_ERROR(staging.Reserve(bytes));
  CXL_ASSIGN_OR_RETURN(const tier::Handle made, ring_.Take(bytes));
  staging.Forget(ring_.head(), ring_.layout().bytes());
  StagingBuffer& buffer = staging.NextOutgoing({made.position, bytes});
  CXL_RETURN_IF_ERROR(StreamWait(stream, buffer.free));
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemcpyAsync(buffer.memory.get(), value, bytes,
                                       cudaMemcpyDeviceToDevice, stream),
                       "copy a residual"));
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      tier::LaunchWriteHandle({made}, handle, stream), "write a handle"));
  CXL_RETURN_IF_ERROR(Record(buffer.filled, stream));
  return CopyOut(made, buffer, bytes);
}

Status DeviceRing::CopyOut(const tier::Handle& value, StagingBuffer& from,
                           uint64_t bytes) {
  CXL_RETURN_IF_ERROR(StreamWait(out_.get(), from.filled));
  CXL_RETURN_IF_ERROR(ring_.ForEachPiece(
      value.position, bytes,
      [&](int device, uint64_t offset, uint64_t begin, uint64_t size) {
        return cuda::CudaStatus(
            cudaMemcpyAsync(parts_[device] + offset, from.memory.get() + begin,
                            size, cudaMemcpyDeviceToHost, out_.get()),
            "put a residual");
      }));
  CXL_RETURN_IF_ERROR(Record(from.free, out_.get()));
  return Record(last_put_, out_.get());
}

Status DeviceRing::Get(int32_t number, const tier::DeviceHandle* handle,
                       std::byte* value, uint64_t bytes, cudaStream_t stream) {
  const cuda::CurrentDevice current(device_);
  std::lock_guard lock(mutex_);
  CXL_RETURN_IF_ERROR(CheckEarlierGets());
  if (bytes == 0) return OkStatus();
  Staging& staging = staging_[number];
  tier::DeviceGet get;
  std::ranges::copy(parts_, get.parts.begin());
  get.devices = ring_.layout().devices;
  get.rows = ring_.layout().rows;
  get.handle = handle;
  get.own = {{ring_.head(), number_, device_}};
  get.output = value;
  get.bytes = bytes;
  get.error = error_.get();
  const std::optional<StoredValue> expected = staging.Expected();
  StagingBuffer* buffer = nullptr;
  if (expected && expected->bytes == bytes) buffer = staging.Find(*expected);
  if (buffer != nullptr) {
    CXL_RETURN_IF_ERROR(StreamWait(stream, buffer->filled));
    get.staged = buffer->memory.get();
    get.staged_position = expected->position;
  }
  // The staged value may not be the value that `handle` names. Then the kernel
  // reads the right value from the store. It may be the one that was put last,
  // so wait for the last put.
  CXL_RETURN_IF_ERROR(StreamWait(stream, last_put_));
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(tier::LaunchGet(get, stream), "get a residual"));
  if (buffer != nullptr) CXL_RETURN_IF_ERROR(Record(buffer->free, stream));
  while (const std::optional<Staging::Fetch> fetch = staging.NextFetch())
    CXL_RETURN_IF_ERROR(StartFetch(*fetch));
  return OkStatus();
}

Status DeviceRing::StartFetch(const Staging::Fetch& fetch) {
  CXL_RETURN_IF_ERROR(StreamWait(in_.get(), fetch.buffer->free));
  CXL_RETURN_IF_ERROR(StreamWait(in_.get(), last_put_));
  CXL_RETURN_IF_ERROR(ring_.ForEachPiece(
      fetch.value.position, fetch.value.bytes,
      [&](int device, uint64_t offset, uint64_t begin, uint64_t size) {
        return cuda::CudaStatus(
            cudaMemcpyAsync(fetch.buffer->memory.get() + begin,
                            parts_[device] + offset, size,
                            cudaMemcpyHostToDevice, in_.get()),
            "fetch a residual");
      }));
  return Record(fetch.buffer->filled, in_.get());
}

Status DeviceRing::CheckEarlierGets() {
  volatile uint64_t& since = error_[0].since;
  const uint64_t found = since;
  since = 0;
  if (found == 0) return OkStatus();
  if (found == tier::GetError::kOtherRing)
    return Error(Code::kInternal, "device ", device_,
                 " got the handle of a residual of another device; please "
                 "report this to jax_cxl");
  return ring_.OverwrittenError(found);
}

}  // namespace jax_cxl::comm
