#include "cc/store/cuda/device_copies.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/current_device.h"
#include "cc/store/checksum/xxh3_lanes.h"
#include "cc/store/cuda/kernels/block_checksums.h"

namespace jax_cxl::comm {
namespace {

// How many bytes a stream copies in one turn. This is enough for full speed. It
// is not larger, because the program's own copies (of a loss, for example) wait
// until the turn ends.
constexpr uint64_t kTurnBytes = 16 << 20;

// A thread waits for such an event without spinning.
constexpr unsigned kBlocking = cudaEventBlockingSync | cudaEventDisableTiming;

}  // namespace

Result<std::unique_ptr<DeviceCopies>> DeviceCopies::Create(
    std::byte* base, uint64_t bytes, const std::vector<int>& devices) {
  std::unique_ptr<DeviceCopies> made(new DeviceCopies);
  made->base_ = base;
  made->bytes_ = bytes;
  CXL_ASSIGN_OR_RETURN(made->registration_,
                       PoolRegistration::Create(base, bytes, devices));
  for (int device : devices) {
    const cuda::CurrentDevice current(device);
    CopyQueue& queue = made->queues_[device];
    CXL_ASSIGN_OR_RETURN(queue.last, cuda::MakeEvent());
    for (cuda::Stream* stream :
         {&queue.streams[0], &queue.streams[1], &queue.checksums}) {
      CXL_ASSIGN_OR_RETURN(*stream, cuda::MakeStream());
    }
  }
  return made;
}

DeviceCopies::~DeviceCopies() {
  for (auto& [device, queue] : queues_) {
    const cuda::CurrentDevice current(device);
    for (const cuda::Stream* stream :
         {&queue.streams[0], &queue.streams[1], &queue.checksums})
      if (*stream != nullptr) cudaStreamSynchronize(stream->get());
    queue = {};
  }
  for (const Exchange& exchange : unused_) cudaFreeHost(exchange.words);
}

Result<uint64_t> DeviceCopies::Start(int device,
                                     const std::vector<Copy>& copies) {
  std::lock_guard lock(mutex_);
  const auto queue = queues_.find(device);
  if (queue == queues_.end() ||
      !std::ranges::all_of(copies,
                           [&](const Copy& copy) { return IsInside(copy); }))
    return Error(Code::kInvalidArgument, copies.size(), " copies from device ",
                 device,
                 " are outside the memory; please report this to jax_cxl");
  const cuda::CurrentDevice current(device);
  cuda::Event& end = under_way_[next_];
  CXL_ASSIGN_OR_RETURN(end, cuda::MakeEvent(kBlocking));
  for (const Copy& copy : copies)
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(Enqueue(queue->second, copy),
                                         "start a copy from a device"));
  CXL_RETURN_IF_ERROR(cuda::Record(end, queue->second.streams[0].get()));
  return next_++;
}

bool DeviceCopies::IsInside(const Copy& copy) const {
  const auto offset = static_cast<uint64_t>(copy.to - base_);
  return copy.bytes <= bytes_ && offset <= bytes_ - copy.bytes;
}

cudaError_t DeviceCopies::Enqueue(CopyQueue& queue, const Copy& copy) {
  for (uint64_t done = 0; done < copy.bytes; done += kTurnBytes) {
    std::swap(queue.streams[0], queue.streams[1]);
    const cudaStream_t stream = queue.streams[0].get();
    const uint64_t bytes = std::min(kTurnBytes, copy.bytes - done);
    cudaError_t error = cudaStreamWaitEvent(stream, queue.last.get());
    if (error == cudaSuccess)
      error = cudaMemcpyAsync(copy.to + done, copy.from + done, bytes,
                              cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess) error = cudaEventRecord(queue.last.get(), stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

Status DeviceCopies::Wait(uint64_t number) {
  cuda::Event event;
  {
    std::lock_guard lock(mutex_);
    const auto found = under_way_.find(number);
    if (found == under_way_.end()) return OkStatus();
    event = std::move(found->second);
    under_way_.erase(found);
  }
  return cuda::CudaStatus(cudaEventSynchronize(event.get()), "wait for copies");
}

Result<std::vector<std::vector<uint64_t>>> DeviceCopies::Checksums(
    const std::vector<Blocks>& of_devices, uint64_t bytes) {
  std::vector<Exchange> started;
  for (const Blocks& blocks : of_devices) {
    CXL_ASSIGN_OR_RETURN(started.emplace_back(), StartChecksums(blocks, bytes));
  }
  std::vector<std::vector<uint64_t>> checksums;
  for (size_t n = 0; n < started.size(); ++n) {
    const Exchange& exchange = started[n];
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaEventSynchronize(exchange.end.get()), "compute checksums"));
    const size_t count = of_devices[n].addresses.size();
    const uint64_t* results = exchange.words + count;
    checksums.emplace_back(results, results + count);
    std::lock_guard lock(mutex_);
    unused_.push_back({exchange.words, exchange.count, {}});
  }
  return checksums;
}

// Starts to compute the checksums of `blocks` on their device, and returns the
// borrowed host memory to which the device writes them. After an error, the
// device may still write to this memory, so the memory is never used again.
Result<DeviceCopies::Exchange> DeviceCopies::StartChecksums(
    const Blocks& blocks, uint64_t bytes) {
  const auto queue = queues_.find(blocks.device);
  if (queue == queues_.end() || bytes == 0 || bytes % xxh3::kStepBytes != 0 ||
      std::ranges::any_of(blocks.addresses,
                          [](uint64_t at) { return at % 16 != 0; }))
    return Error(
        Code::kInvalidArgument, "cannot compute checksums of blocks of ", bytes,
        " bytes on device ", blocks.device, "; please report this to jax_cxl");
  const cuda::CurrentDevice current(blocks.device);
  const cudaStream_t stream = queue->second.checksums.get();
  const size_t count = blocks.addresses.size();
  CXL_ASSIGN_OR_RETURN(Exchange exchange, Borrow(2 * count));
  std::ranges::copy(blocks.addresses, exchange.words);
  CXL_ASSIGN_OR_RETURN(exchange.end, cuda::MakeEvent(kBlocking));
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cuda::LaunchBlockChecksums(exchange.words, count, bytes,
                                 exchange.words + count, stream),
      "compute checksums"));
  CXL_RETURN_IF_ERROR(cuda::Record(exchange.end, stream));
  return exchange;
}

Result<DeviceCopies::Exchange> DeviceCopies::Borrow(size_t count) {
  {
    std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(
        unused_, [&](const Exchange& each) { return each.count >= count; });
    if (found != unused_.end()) {
      Exchange exchange = std::move(*found);
      unused_.erase(found);
      return exchange;
    }
  }
  Exchange exchange;
  exchange.count = std::bit_ceil(std::max<size_t>(count, 512));
  void* memory = nullptr;
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaHostAlloc(&memory, exchange.count * sizeof(uint64_t),
                                     cudaHostAllocPortable),
                       "get memory for checksums"));
  exchange.words = static_cast<uint64_t*>(memory);
  return exchange;
}

}  // namespace jax_cxl::comm
