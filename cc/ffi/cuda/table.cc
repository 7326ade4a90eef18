// Takes rows of a table on a GPU.

#include "cc/ffi/table.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>

#include "cc/engine/cuda/executor.h"
#include "cc/ffi/cuda/handlers.h"
#include "cc/ffi/errors.h"
#include "cc/table/cuda/take.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

using Position = unsigned long long;
constexpr Position kNone = ~Position{0};

Status Launch(const TableCall& call, Position* outside, cudaStream_t stream) {
  const table::Column& column = *call.column;
  const table::Request& request = call.request;
  table::DeviceTake take = {
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
      .output = request.output,
      .outside = outside};
  const size_t element = request.fill.size();
  if (element > take.fill.size() || take.fill.size() % element != 0)
    return Error(Code::kInternal, "elements have ", element, " bytes");
  for (size_t at = 0; at < take.fill.size(); at += element)
    std::ranges::copy(request.fill, take.fill.begin() + at);
  return cuda::CudaStatus(table::LaunchTake(take, stream), "take rows");
}

// Waits for the call; fails if it has found an id outside of the table.
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

Status TakeOn(cudaStream_t stream, xffi::ScratchAllocator& scratch,
              const TableCall& call) {
  std::shared_lock in_use(call.column->in_use);
  if (call.column->closed)
    return Error(Code::kFailedPrecondition, "take: the table was closed");
  if (*static_cast<volatile const uint32_t*>(call.column->stalled) != 0)
    return Error(Code::kDeadlineExceeded,
                 "a step that changes a table did not finish within ",
                 call.column->timeout_s, " s. Open the table again");
  if (call.request.mode != table::Mode::kError)
    return Launch(call, nullptr, stream);
  const std::optional<void*> memory =
      scratch.Allocate(sizeof(Position), alignof(Position));
  if (!memory)
    return Error(Code::kResourceExhausted, "the GPU has no memory left");
  auto* outside = static_cast<Position*>(*memory);
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemsetAsync(outside, 0xff, sizeof(Position), stream), "take rows"));
  CXL_RETURN_IF_ERROR(Launch(call, outside, stream));
  return CheckInside(call, outside, stream);
}

xffi::Error Take(cudaStream_t stream, xffi::ScratchAllocator scratch,
                 int64_t table, int32_t column, int32_t mode,
                 xffi::Span<const uint8_t> fill, xffi::AnyBuffer ids,
                 xffi::Result<xffi::AnyBuffer> output) {
  const Result<TableCall> call =
      TableCall::Of({table, column, mode, fill}, ids, *output);
  if (!call.ok()) return ToFfiError(call.status());
  const Status status = TakeOn(stream, scratch, *call);
  return status.ok() ? xffi::Error::Success() : ToFfiError(status);
}

}  // namespace
}  // namespace jax_cxl::ffi

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_cuda_table, jax_cxl::ffi::Take,
    jax_cxl::ffi::BindTable(xla::ffi::Ffi::Bind()
                                .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                .Ctx<xla::ffi::ScratchAllocator>()));
