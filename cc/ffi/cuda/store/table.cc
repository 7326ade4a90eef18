// Takes rows of a table on a GPU. Like the handlers for residuals, these
// enqueue on XLA's stream and return. They have no state, and work without a
// job. None is marked as compatible with command buffers (CUDA graphs).

#include "cc/ffi/store/table.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/streams.h"
#include "cc/ffi/errors/errors.h"
#include "cc/gpu/cuda/started.h"
#include "cc/store/cuda/device_cache.h"
#include "cc/store/cuda/kernels/take.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

using Position = unsigned long long;
constexpr Position kNone = ~Position{0};

// Enqueues the kernel that takes the rows of `call`. If an id is outside of the
// table, the kernel stores the position of that id in `*outside`, unless
// `outside` is null. The caller holds the lock `in_use` of the column.
Status Launch(const TableCall& call, Position* outside, cudaStream_t stream,
              uint32_t most_blocks = 0) {
  const table::Column& column = *call.column;
  int device = 0;
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  const table::Request& request = call.request;
  column.taken->fetch_add(request.ids.count);
  const auto cache = column.caches.find(device);
  const table::DeviceTake take = {
      .data = column.data,
      .rows = column.rows,
      .row_bytes = column.row_bytes,
      .parts = column.parts,
      .rows_of_part = std::max<uint64_t>(column.rows_of_part, 1),
      .timeout_ns = static_cast<uint64_t>(column.timeout_s * 1e9),
      .stalled = column.stalled,
      .ids = request.ids.data,
      .wide = request.ids.wide,
      .count = request.ids.count,
      .mode = request.mode,
      .fill = request.fill,
      .output = request.output,
      .outside = outside,
      .cache = cache == column.caches.end()
                   ? table::CacheView()
                   : cache->second->View(request.ids.count),
      .most_blocks = most_blocks};
  return cuda::CudaStatus(table::LaunchTake(take, stream), "take rows");
}

// Waits for the call on `stream`. Fails if the call has found an id outside of
// the table, whose position is then in `*outside`.
Status CheckInside(const TableCall& call, const Position* outside,
                   cudaStream_t stream) {
  const auto fetch = [&](void* to, const void* from, size_t bytes) {
    cudaError_t error =
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    return cuda::CudaStatus(error, "look for ids outside of a table");
  };
  Position position = kNone;
  CXL_RETURN_IF_ERROR(fetch(&position, outside, sizeof(position)));
  if (position == kNone) return OkStatus();
  const table::Ids& ids = call.request.ids;
  int64_t wide = 0;
  int32_t narrow = 0;
  const auto* from = static_cast<const std::byte*>(ids.data);
  CXL_RETURN_IF_ERROR(ids.wide ? fetch(&wide, from + position * 8, 8)
                               : fetch(&narrow, from + position * 4, 4));
  return table::OutsideError(
      *call.column, std::to_string(ids.wide ? wide : narrow), position);
}

Status CheckNotStalled(const table::Column& column) {
  if (*static_cast<volatile const uint32_t*>(column.stalled) != 0)
    return Error(Code::kDeadlineExceeded,
                 "a step that changes a table did not finish within ",
                 column.timeout_s,
                 " s. If the job that trains the table has ended, start it "
                 "again: it will finish the step. Then open the table again");
  return OkStatus();
}

Status TakeOn(cudaStream_t stream, xffi::ScratchAllocator& scratch,
              const TableCall& call) {
  CXL_RETURN_IF_ERROR(CheckNotStalled(*call.column));
  if (call.request.mode != table::Mode::kError)
    return Launch(call, nullptr, stream);
  const std::optional<void*> memory =
      scratch.Allocate(sizeof(Position), alignof(Position));
  if (!memory)
    return Error(Code::kResourceExhausted,
                 "take: the GPU has no memory left; free some arrays");
  auto* outside = static_cast<Position*>(*memory);
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemsetAsync(outside, 0xff, sizeof(Position), stream), "take rows"));
  CXL_RETURN_IF_ERROR(Launch(call, outside, stream));
  return CheckInside(call, outside, stream);
}

// In mode "error", waits for the GPU, because it must fail if an id is outside
// of the table.
xffi::Error Take(cudaStream_t stream, xffi::ScratchAllocator scratch,
                 int64_t table, int32_t column, int32_t mode,
                 xffi::Span<const uint8_t> fill, xffi::AnyBuffer ids,
                 xffi::Result<xffi::AnyBuffer> output) {
  return OnTable(
      {table, column, mode, fill}, ids, *output,
      [&](const TableCall& call) { return TakeOn(stream, scratch, call); });
}

// A stream of a GPU that takes rows while XLA's stream computes.
//
// Thread-safe.
class Aside {
 public:
  // Returns the object of the current device, which is never destroyed.
  static Result<Aside*> OfCurrentDevice() {
    static std::mutex mutex;
    static auto& of_devices = *new std::map<int, std::unique_ptr<Aside>>;
    int device = 0;
    CXL_RETURN_IF_ERROR(
        cuda::CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
    std::lock_guard lock(mutex);
    std::unique_ptr<Aside>& aside = of_devices[device];
    if (aside == nullptr) {
      auto made = std::make_unique<Aside>();
      CXL_ASSIGN_OR_RETURN(made->own_, cuda::MakeUrgentStream());
      aside = std::move(made);
    }
    return aside.get();
  }

  Status Start(const TableCall& call, cudaStream_t stream) {
    CXL_RETURN_IF_ERROR(CheckNotStalled(*call.column));
    const void* output = call.request.output;
    std::lock_guard lock(mutex_);
    CXL_RETURN_IF_ERROR(started_.Begin(output, stream, own_.get()));
    CXL_RETURN_IF_ERROR(Launch(call, nullptr, own_.get(), kBlocks));
    return started_.End(output, own_.get());
  }

  Status Done(const void* output, void* result, uint64_t bytes,
              cudaStream_t stream) {
    std::lock_guard lock(mutex_);
    return started_.Done(output, result, bytes, stream);
  }

 private:
  // This many blocks are enough to hide the latency of the link. They leave
  // most of the GPU to the computation.
  static constexpr uint32_t kBlocks = 32;

  std::mutex mutex_;
  cuda::Stream own_;
  comm::Started started_;
};

xffi::Error StartTake(cudaStream_t stream, int64_t table, int32_t column,
                      int32_t mode, xffi::Span<const uint8_t> fill,
                      xffi::AnyBuffer ids, xffi::Result<xffi::AnyBuffer> output,
                      xffi::Result<xffi::AnyBuffer> /*token*/) {
  return OnTable({table, column, mode, fill}, ids, *output,
                 [&](const TableCall& call) -> Status {
                   CXL_ASSIGN_OR_RETURN(Aside* const aside,
                                        Aside::OfCurrentDevice());
                   return aside->Start(call, stream);
                 });
}

xffi::Error TakeDone(cudaStream_t stream, xffi::AnyBuffer /*ids*/,
                     xffi::AnyBuffer started, xffi::RemainingArgs /*after*/,
                     xffi::Result<xffi::AnyBuffer> output) {
  const Result<Aside*> aside = Aside::OfCurrentDevice();
  return ToFfiError(aside.ok() ? (*aside)->Done(started.untyped_data(),
                                                output->untyped_data(),
                                                output->size_bytes(), stream)
                               : aside.status());
}

}  // namespace
}  // namespace jax_cxl::ffi

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_cuda_table, jax_cxl::ffi::Take,
    jax_cxl::ffi::BindTable(xla::ffi::Ffi::Bind()
                                .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                .Ctx<xla::ffi::ScratchAllocator>()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_cuda_start_table, jax_cxl::ffi::StartTake,
    jax_cxl::ffi::BindTable(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<cudaStream_t>>())
        .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_table_done, jax_cxl::ffi::TakeDone,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<xla::ffi::AnyBuffer>());
