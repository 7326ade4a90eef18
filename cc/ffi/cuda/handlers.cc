#include "cc/ffi/cuda/handlers.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "cc/comm/cuda/device_runtime.h"
#include "cc/engine/cuda/rows.h"
#include "cc/ffi/call_site.h"
#include "cc/ffi/errors.h"
#include "cc/ffi/row_buffers.h"
#include "cc/ffi/slice_check.h"
#include "cc/plan/plan.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;
xffi::Error Finish(const Status& status) {
  return status.ok() ? xffi::Error::Success() : ToFfiError(status);
}

// The runtime, and the endpoint of XLA's device.
struct Device {
  std::shared_ptr<comm::DeviceRuntime> runtime;
  const comm::DeviceRuntime::Local* local = nullptr;
};

Result<Device> FindDevice(int32_t ordinal) {
  Device device;
  device.runtime = comm::DeviceRuntime::Current();
  if (device.runtime == nullptr)
    return Error(Code::kFailedPrecondition,
                 "a compiled program calls a collective, but jax_cxl is not "
                 "running; call jax_cxl.initialize() first");
  CXL_RETURN_IF_ERROR(device.runtime->failure());
  device.local = device.runtime->Find(ordinal);
  if (device.local == nullptr)
    return Error(Code::kFailedPrecondition, "GPU ", ordinal,
                 " was not there when jax_cxl.initialize() ran");
  return device;
}

// The peers wait for a call that could not be enqueued. Tells them, as the end
// of all collectives of this process.
Status OkOrFail(const Device& device, const Status& enqueued) {
  if (enqueued.ok()) return enqueued;
  device.runtime->Fail(enqueued);
  return device.runtime->failure();
}

Status Enqueue(cudaStream_t stream, int32_t ordinal, const CallSite& site,
               const void* input, void* output,
               const comm::RowOperands& operands = {}) {
  CXL_ASSIGN_OR_RETURN(Device device, FindDevice(ordinal));
  CXL_ASSIGN_OR_RETURN(CallSite::Execution execution,
                       site.MakeExecution(device.local->rank, input, output));
  execution.call->row_operands = operands;
  return OkOrFail(device, device.local->endpoint->Enqueue(
                              *execution.members, *execution.call, stream));
}

// Allocates the memory that the devices need for the call, when XLA loads its
// program.
xffi::ErrorOr<std::unique_ptr<CallSite>> Instantiate(
    xffi::Dictionary attributes) {
  auto site = CallSite::Make(attributes);
  if (!site) return site;
  const std::shared_ptr<comm::DeviceRuntime> runtime =
      comm::DeviceRuntime::Current();
  if (runtime != nullptr) {
    const Status status = runtime->Reserve((*site)->prototype().request);
    if (!status.ok()) return xffi::Unexpected(ToFfiError(status));
  }
  return site;
}

xffi::Error Collective(cudaStream_t stream, int32_t ordinal, CallSite* site,
                       xffi::AnyBuffer input,
                       xffi::Result<xffi::AnyBuffer> output) {
  Status status = site->CheckBuffers(input.size_bytes(), output->size_bytes());
  if (status.ok())
    status = Enqueue(stream, ordinal, *site, input.untyped_data(),
                     output->untyped_data());
  return Finish(status);
}

comm::RowOperands OperandsOf(const RowBuffers& buffers) {
  comm::RowOperands operands;
  operands.indices = buffers.indices.data();
  operands.published = buffers.published.data();
  operands.slices = buffers.slices.data();
  operands.slice_entry_bytes = buffers.slice_entry_bytes;
  operands.scratch = buffers.scratch;
  return operands;
}

Status EnqueueRows(cudaStream_t stream, int32_t ordinal, const CallSite& site,
                   const RowBuffers& buffers) {
  if (buffers.before != nullptr && buffers.before != buffers.output)
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaMemcpyAsync(buffers.output, buffers.before,
                        plan::OutputBytes(site.prototype().request),
                        cudaMemcpyDeviceToDevice, stream),
        "copying a value"));
  return Enqueue(stream, ordinal, site, buffers.input, buffers.output,
                 OperandsOf(buffers));
}

xffi::Error Rows(cudaStream_t stream, int32_t ordinal, CallSite* site,
                 xffi::RemainingArgs arguments, xffi::RemainingRets results) {
  const Result<RowBuffers> buffers =
      RowBuffers::Of(*site, arguments, results,
                     cuda::RowScratchBytes(site->prototype().request));
  return Finish(buffers.ok() ? EnqueueRows(stream, ordinal, *site, *buffers)
                             : buffers.status());
}

// The lowering asks XLA to place each result where its operand is. XLA may have
// made one of them a slice of a larger array. Then this copies the operand.
Status PassThrough(const xffi::RemainingArgs& arguments,
                   const xffi::RemainingRets& results, cudaStream_t stream) {
  for (size_t i = 0; i < results.size(); ++i) {
    auto argument = arguments.get<xffi::AnyBuffer>(i);
    auto result = results.get<xffi::AnyBuffer>(i);
    if (!argument || !result ||
        argument->size_bytes() != (*result)->size_bytes())
      return Error(Code::kInternal,
                   "a call got other buffers than it was lowered for");
    if (argument->untyped_data() == (*result)->untyped_data()) continue;
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaMemcpyAsync((*result)->untyped_data(), argument->untyped_data(),
                        argument->size_bytes(), cudaMemcpyDeviceToDevice,
                        stream),
        "copying a value"));
  }
  return OkStatus();
}

xffi::Error Barrier(cudaStream_t stream, int32_t ordinal, CallSite* site,
                    xffi::RemainingArgs arguments,
                    xffi::RemainingRets results) {
  Status status = PassThrough(arguments, results, stream);
  if (status.ok()) status = Enqueue(stream, ordinal, *site, nullptr, nullptr);
  return Finish(status);
}

Status EnqueueStart(cudaStream_t stream, int32_t ordinal, const CallSite& site,
                    const void* input, void* output,
                    const comm::RowOperands& operands = {}) {
  CXL_ASSIGN_OR_RETURN(Device device, FindDevice(ordinal));
  CXL_ASSIGN_OR_RETURN(CallSite::Execution execution,
                       site.MakeExecution(device.local->rank, input, output));
  execution.call->row_operands = operands;
  return OkOrFail(device, device.local->endpoint->EnqueueStart(
                              *execution.members, *execution.call, stream));
}

xffi::Error Start(cudaStream_t stream, int32_t ordinal, CallSite* site,
                  xffi::AnyBuffer input, xffi::Result<xffi::AnyBuffer> output,
                  xffi::Result<xffi::AnyBuffer> /*token*/) {
  Status status = site->CheckBuffers(input.size_bytes(), output->size_bytes());
  if (status.ok())
    status = EnqueueStart(stream, ordinal, *site, input.untyped_data(),
                          output->untyped_data());
  return Finish(status);
}

// Results: the taken rows, scratch memory, and the token.
xffi::Error StartRows(cudaStream_t stream, int32_t ordinal, CallSite* site,
                      xffi::RemainingArgs arguments,
                      xffi::RemainingRets results) {
  const Result<RowBuffers> buffers =
      RowBuffers::Of(*site, arguments, results,
                     cuda::RowScratchBytes(site->prototype().request));
  return Finish(buffers.ok()
                    ? EnqueueStart(stream, ordinal, *site, buffers->input,
                                   buffers->output, OperandsOf(*buffers))
                    : buffers.status());
}

Status EnqueueDone(cudaStream_t stream, int32_t ordinal,
                   const xffi::AnyBuffer& started, xffi::AnyBuffer& output) {
  CXL_ASSIGN_OR_RETURN(Device device, FindDevice(ordinal));
  return device.local->endpoint->EnqueueDone(started.untyped_data(),
                                             output.untyped_data(),
                                             output.size_bytes(), stream);
}

xffi::Error Done(cudaStream_t stream, int32_t ordinal,
                 xffi::AnyBuffer /*input*/, xffi::AnyBuffer started,
                 xffi::RemainingArgs /*kept, after*/,
                 xffi::Result<xffi::AnyBuffer> output) {
  if (started.size_bytes() != output->size_bytes())
    return Finish(
        Error(Code::kInternal, "done got another result than the start's"));
  return Finish(EnqueueDone(stream, ordinal, started, *output));
}

xffi::Error Tie(cudaStream_t stream, xffi::AnyBuffer /*token*/,
                xffi::RemainingArgs arguments, xffi::RemainingRets results) {
  return Finish(PassThrough(arguments, results, stream));
}

// Waits until the device has the tables: the host checks them.
Status CheckSliceTablesOfDevice(cudaStream_t stream,
                                const xffi::AnyBuffer& tables,
                                xffi::Span<const int64_t> rows) {
  std::vector<std::byte> data(tables.size_bytes());
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpyAsync(data.data(), tables.untyped_data(), data.size(),
                      cudaMemcpyDeviceToHost, stream),
      "copying tables of slices"));
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(cudaStreamSynchronize(stream),
                                       "copying tables of slices"));
  return CheckSliceTables(tables, rows, data.data());
}

xffi::Error CheckSlices(cudaStream_t stream, xffi::Span<const int64_t> rows,
                        xffi::RemainingArgs arguments,
                        xffi::RemainingRets results) {
  Status status = PassThrough(arguments, results, stream);
  if (auto tables = arguments.get<xffi::AnyBuffer>(0); status.ok() && tables)
    status = CheckSliceTablesOfDevice(stream, *tables, rows);
  // Other ranks may wait for the collectives that this program now lacks.
  if (const auto runtime = comm::DeviceRuntime::Current();
      !status.ok() && runtime != nullptr)
    runtime->Fail(status);
  return Finish(status);
}

// Binds the first parameters of every handler of a call.
auto BindCall() {
  return xffi::Ffi::Bind()
      .Ctx<xffi::PlatformStream<cudaStream_t>>()
      .Ctx<xffi::DeviceOrdinal>()
      .Ctx<xffi::State<CallSite>>();
}

// Binds them, and any number of buffers.
auto BindAnyBuffers() { return BindCall().RemainingArgs().RemainingRets(); }

}  // namespace
}  // namespace jax_cxl::ffi

namespace xffi = xla::ffi;
using jax_cxl::ffi::BindAnyBuffers;
using jax_cxl::ffi::BindCall;
using jax_cxl::ffi::CallSite;

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_instantiate,
                              jax_cxl::ffi::Instantiate,
                              xffi::Ffi::BindInstantiate().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_cuda_collective, jax_cxl::ffi::Collective,
    BindCall().Arg<xffi::AnyBuffer>().Ret<xffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_rows, jax_cxl::ffi::Rows,
                              BindAnyBuffers());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_barrier, jax_cxl::ffi::Barrier,
                              BindAnyBuffers());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_start, jax_cxl::ffi::Start,
                              BindCall()
                                  .Arg<xffi::AnyBuffer>()
                                  .Ret<xffi::AnyBuffer>()
                                  .Ret<xffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_start_rows, jax_cxl::ffi::StartRows,
                              BindAnyBuffers());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_done, jax_cxl::ffi::Done,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<xffi::DeviceOrdinal>()
                                  .Arg<xffi::AnyBuffer>()
                                  .Arg<xffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<xffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_tie, jax_cxl::ffi::Tie,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::PlatformStream<cudaStream_t>>()
                                  .Arg<xffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_check_slices,
                              jax_cxl::ffi::CheckSlices,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::PlatformStream<cudaStream_t>>()
                                  .Attr<xffi::Span<const int64_t>>("rows")
                                  .RemainingArgs()
                                  .RemainingRets());
