#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/current_device.h"
#include "cc/base/cuda/device_memory.h"
#include "cc/engine/cuda/executor.h"
#include "cc/nccl/compare/comparison.h"
#include "cc/nccl/cuda/stream_order.h"
#include "cc/pool/layout/geometry.h"

namespace jax_cxl::nccl {
namespace {

using cuda::CudaStatus;
using cuda::CurrentDevice;

constexpr int kThreads = 256;
constexpr uint64_t kMostBlocks = 1024;
constexpr uint64_t kAlignment = 256;

// What the blocks of a comparison tell each other. The last one resets it.
struct Progress {
  unsigned long long equal;  // elements before the first that differs
  unsigned int done;         // blocks
};

__device__ uint64_t FirstIndex() {
  return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ uint64_t NumThreads() { return uint64_t{gridDim.x} * blockDim.x; }

unsigned int BlocksFor(uint64_t count) {
  return static_cast<unsigned int>(
      std::clamp<uint64_t>((count + kThreads - 1) / kThreads, 1, kMostBlocks));
}

__global__ void WeighElements(const __grid_constant__ Rule rule,
                              const void* input, int bytes, uint64_t count,
                              bool multiplies,
                              const __grid_constant__ comm::Factor factor,
                              void* weights) {
  double by = 1;
  if (multiplies)
    by = ValueOf(rule.dtype, factor.at != nullptr
                                 ? ElementBits(factor.at, 0, bytes)
                                 : factor.bits);
  for (uint64_t i = FirstIndex(); i < count; i += NumThreads()) {
    const double part = PartOfWeight(
        rule, ValueOf(rule.dtype, ElementBits(input, i, bytes)), by);
    if (rule.weight_dtype() == DType::kFloat64)
      static_cast<double*>(weights)[i] = part;
    else
      static_cast<float*>(weights)[i] = static_cast<float>(part);
  }
}

__device__ bool DifferAt(const Results& results, uint64_t i) {
  const DType dtype = results.rule.weight_dtype();
  double weight = 0;
  if (results.weights != nullptr)
    weight = ValueOf(dtype, ElementBits(results.weights, i,
                                        dtype == DType::kFloat64 ? 8 : 4));
  return Differ(results.rule,
                ElementBits(results.ours, i, results.element_bytes),
                ElementBits(results.theirs, i, results.element_bytes), weight);
}

__global__ void CompareElements(const __grid_constant__ Results results,
                                Progress* progress, Found* found) {
  uint64_t first = FirstIndex();
  while (first < results.count && !DifferAt(results, first))
    first += NumThreads();
  if (first < results.count) atomicMin(&progress->equal, first);
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&progress->done, 1) != gridDim.x - 1)
    return;
  progress->done = 0;
  const uint64_t element = atomicExch(&progress->equal, ~0ull);
  ++found->compared;
  if (element >= results.count || found->results.number != 0) return;
  Results known = results;
  known.number = 0;
  found->results = known;
  found->element = element;
  found->ours = ElementBits(results.ours, element, results.element_bytes);
  found->theirs = ElementBits(results.theirs, element, results.element_bytes);
  __threadfence_system();
  *static_cast<volatile uint64_t*>(&found->results.number) = results.number;
}

__global__ void Count(uint64_t* comparisons) { ++*comparisons; }

class CudaComparer final : public Comparer {
 public:
  explicit CudaComparer(int ordinal) : ordinal_(ordinal) {}
  ~CudaComparer() override {
    const OnDevice on_device(ordinal_);
    static_cast<void>(order_.Drain());
    memory_.clear();
    progress_.reset();
    found_.reset();
  }

  Status Open() {
    const OnDevice on_device(ordinal_);
    CXL_RETURN_IF_ERROR(
        CudaStatus(cuda::LoadKernels(WeighElements, CompareElements, Count),
                   "loading kernels"));
    CXL_RETURN_IF_ERROR(order_.Open());
    CXL_ASSIGN_OR_RETURN(found_, comm::AllocatePinned<Found>(1));
    CXL_ASSIGN_OR_RETURN(progress_, comm::AllocateDevice<Progress>(1));
    const Progress none = {~0ull, 0};
    return comm::CopyToDevice(progress_.get(), &none, 1);
  }

  Status Begin(std::span<const Stream> streams) override {
    const OnDevice on_device(ordinal_);
    block_ = taken_ = 0;
    streams_.clear();
    for (Stream stream : streams)
      streams_.push_back(static_cast<cudaStream_t>(stream));
    CXL_RETURN_IF_ERROR(order_.Before(streams_));
    return CountOne(&found_[0].begun);
  }

  Result<std::byte*> Take(uint64_t bytes) override {
    const OnDevice on_device(ordinal_);
    for (; block_ < memory_.size(); ++block_, taken_ = 0) {
      if (taken_ + bytes > memory_[block_].second) continue;
      std::byte* const part = memory_[block_].first.get() + taken_;
      taken_ += pool::RoundUp(bytes, kAlignment);
      return part;
    }
    // Twice the last block, so that all blocks have at most four times the
    // bytes of the longest comparison.
    const uint64_t wanted =
        std::max(bytes, memory_.empty() ? 0 : 2 * memory_.back().second);
    void* memory = nullptr;
    if (cudaMalloc(&memory, wanted) != cudaSuccess)
      return Error(Code::kResourceExhausted, "JAX_CXL_NCCL_COMPARE needs ",
                   wanted, " bytes more of the GPU's memory: ",
                   cudaGetErrorString(cudaGetLastError()));
    memory_.emplace_back(static_cast<std::byte*>(memory), wanted);
    taken_ = pool::RoundUp(bytes, kAlignment);
    return static_cast<std::byte*>(memory);
  }

  Status Copy(void* to, const void* from, uint64_t bytes) override {
    CurrentDevice current(ordinal_);
    return CudaStatus(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, streams_[0]),
        "copying an input");
  }

  Status Weigh(const Rule& rule, const void* input, uint64_t count,
               const std::optional<comm::Factor>& factor,
               void* weights) override {
    CurrentDevice current(ordinal_);
    WeighElements<<<BlocksFor(count), kThreads, 0, streams_[0]>>>(
        rule, input, DTypeBytes(rule.dtype), count, factor.has_value(),
        factor.value_or(comm::Factor()), weights);
    return CudaStatus(cudaGetLastError(), "weighing an input");
  }

  Status Compare(const Results& results) override {
    CurrentDevice current(ordinal_);
    CompareElements<<<BlocksFor(results.count), kThreads, 0, streams_[0]>>>(
        results, progress_.get(), found_.get());
    return CudaStatus(cudaGetLastError(), "comparing results");
  }

  Status End() override {
    CurrentDevice current(ordinal_);
    CXL_RETURN_IF_ERROR(CountOne(&found_[0].ended));
    return order_.After(streams_);
  }

  Status Drain() override {
    const OnDevice on_device(ordinal_);
    return order_.Drain();
  }

  Found found() const override {
    const uint64_t number = std::atomic_ref(found_[0].results.number).load();
    Found found = found_[0];
    found.results.number = number;
    return found;
  }

 private:
  Status CountOne(uint64_t* comparisons) {
    Count<<<1, 1, 0, streams_[0]>>>(comparisons);
    return CudaStatus(cudaGetLastError(), "counting comparisons");
  }

  const int ordinal_;
  StreamOrder order_;
  std::vector<cudaStream_t> streams_;
  comm::DeviceMemory<Progress> progress_;
  comm::PinnedMemory<Found> found_;
  // Blocks of memory and their bytes. Graphs keep their addresses.
  std::vector<std::pair<comm::DeviceMemory<std::byte>, uint64_t>> memory_;
  size_t block_ = 0;    // from which this comparison takes memory
  uint64_t taken_ = 0;  // bytes of that block
};

}  // namespace

Result<std::unique_ptr<Comparer>> MakeCudaComparer(int ordinal) {
  auto comparer = std::make_unique<CudaComparer>(ordinal);
  CXL_RETURN_IF_ERROR(comparer->Open());
  return std::unique_ptr<Comparer>(std::move(comparer));
}

}  // namespace jax_cxl::nccl
