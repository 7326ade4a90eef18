#include "cc/ffi/cuda/handlers.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "cc/base/cuda/cuda_status.h"
#include "cc/engine/cuda/rows.h"
#include "cc/ffi/binding.h"
#include "cc/ffi/call/call_site.h"
#include "cc/ffi/errors/errors.h"
#include "cc/ffi/row_buffers.h"
#include "cc/gpu/cuda/device_runtime.h"
#include "cc/plan/plan.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// The platform of GPUs. binding.h explains the members. `aside` is true for
// calls that are split into a start and a done. They run on a stream of their
// own.
template <bool aside>
struct OnGpu {
  using Bound = xffi::PlatformStream<cudaStream_t>;
  using Context = cudaStream_t;
  using Outcome = xffi::Error;
  using Runtime = comm::DeviceRuntime;

  static xffi::Error Finish(const Status& status) { return ToFfiError(status); }

  static xffi::Error Start(cudaStream_t stream, int32_t /*ordinal*/,
                           const Device<OnGpu>& device, CallSite* /*site*/,
                           CallSite::Execution execution,
                           const RowBuffers* rows) {
    if (const Status failure = device.runtime->failure(); !failure.ok())
      return ToFfiError(failure);
    comm::Call& call = *execution.call;
    call.stream = stream;
    call.aside = aside;
    if (rows != nullptr) call.row_operands = rows->operands;
    const Status enqueued = *device.local->endpoint->StartCall(
        *execution.members, std::move(execution.call));
    if (enqueued.ok()) return xffi::Error::Success();
    // The peers wait for the call, but it could not be enqueued. Abort tells
    // the peers, and ends all collectives of this process.
    device.local->endpoint->Abort(enqueued);
    return ToFfiError(device.runtime->failure());
  }

  // The lowering asks XLA to place each result in the memory of its operand.
  // XLA may place it elsewhere if the operand or the result is a slice of a
  // larger array.
  static Status Keep(cudaStream_t stream, const void* operand, void* result,
                     uint64_t bytes) {
    if (operand == result) return OkStatus();
    return cuda::CudaStatus(cudaMemcpyAsync(result, operand, bytes,
                                            cudaMemcpyDeviceToDevice, stream),
                            "copying a value");
  }

  // Waits until the device has computed the table, and copies it to the host.
  static Result<std::vector<std::byte>> ReadTable(
      cudaStream_t stream, const xffi::AnyBuffer& table) {
    std::vector<std::byte> data(table.size_bytes());
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaMemcpyAsync(data.data(), table.untyped_data(), data.size(),
                        cudaMemcpyDeviceToHost, stream),
        "copying tables of slices"));
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(cudaStreamSynchronize(stream),
                                         "copying tables of slices"));
    return data;
  }

  static uint64_t ScratchBytes(const plan::Request& request) {
    return cuda::RowScratchBytes(request);
  }
};

using Cuda = OnGpu</*aside=*/false>;
using CudaAside = OnGpu</*aside=*/true>;

// The Instantiate stage, which XLA runs when it loads a program. It also
// allocates the memory that the devices need for the call.
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

xffi::Error Start(cudaStream_t stream, int32_t ordinal, CallSite* site,
                  xffi::AnyBuffer input, xffi::Result<xffi::AnyBuffer> output,
                  xffi::Result<xffi::AnyBuffer> /*token*/) {
  return Handlers<CudaAside>::Collective(stream, ordinal, site, input, output);
}

Status EnqueueDone(cudaStream_t stream, int32_t ordinal,
                   const xffi::AnyBuffer& started, xffi::AnyBuffer& output) {
  if (started.size_bytes() != output.size_bytes())
    return Error(Code::kInternal, "done() got ", started.size_bytes(),
                 " bytes from the start of its collective, but returns ",
                 output.size_bytes(),
                 "; please report this, with the versions of jax and jaxlib");
  CXL_ASSIGN_OR_RETURN(const Device<Cuda> device, FindDevice<Cuda>(ordinal));
  CXL_RETURN_IF_ERROR(device.runtime->failure());
  return device.local->endpoint->EnqueueDone(started.untyped_data(),
                                             output.untyped_data(),
                                             output.size_bytes(), stream);
}

xffi::Error Done(cudaStream_t stream, int32_t ordinal,
                 xffi::AnyBuffer /*input*/, xffi::AnyBuffer started,
                 xffi::RemainingArgs /*kept, after*/,
                 xffi::Result<xffi::AnyBuffer> output) {
  return Cuda::Finish(EnqueueDone(stream, ordinal, started, *output));
}

xffi::Error Tie(cudaStream_t stream, xffi::AnyBuffer /*token*/,
                xffi::RemainingArgs arguments, xffi::RemainingRets results) {
  return Cuda::Finish(Handlers<Cuda>::KeepAll(stream, arguments, results));
}

}  // namespace
}  // namespace jax_cxl::ffi

namespace xffi = xla::ffi;
using jax_cxl::ffi::BindAnyBuffers;
using jax_cxl::ffi::BindCall;
using jax_cxl::ffi::Cuda;
using jax_cxl::ffi::CudaAside;

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_instantiate,
                              jax_cxl::ffi::Instantiate,
                              xffi::Ffi::BindInstantiate().Attrs());

JAX_CXL_DEFINE_HANDLERS(jax_cxl_cuda, jax_cxl::ffi::Cuda);

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_start, jax_cxl::ffi::Start,
                              BindCall<Cuda>()
                                  .Arg<xffi::AnyBuffer>()
                                  .Ret<xffi::AnyBuffer>()
                                  .Ret<xffi::AnyBuffer>());

// The results are the taken rows, scratch memory, and the token. `Rows` does
// not use the token.
XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_start_rows,
                              jax_cxl::ffi::Handlers<CudaAside>::Rows,
                              BindAnyBuffers<Cuda>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_done, jax_cxl::ffi::Done,
                              xffi::Ffi::Bind()
                                  .Ctx<Cuda::Bound>()
                                  .Ctx<xffi::DeviceOrdinal>()
                                  .Arg<xffi::AnyBuffer>()
                                  .Arg<xffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<xffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_cuda_tie, jax_cxl::ffi::Tie,
                              xffi::Ffi::Bind()
                                  .Ctx<Cuda::Bound>()
                                  .Arg<xffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets());
