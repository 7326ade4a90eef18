// XLA custom-call handlers of collectives for platform "CUDA". They enqueue on
// XLA's stream and return. All except done, tie and check_slices share one
// Instantiate stage, whose state is a CallSite.
//
// No handler is marked as compatible with command buffers (CUDA graphs). A
// call's number is an argument of its kernel, so a replay of the graph would
// use the same number again.

#include <cuda_runtime_api.h>

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
    if (rows != nullptr) call.row_operands = rows->operands;
    comm::DeviceEndpoint& endpoint = *device.local->endpoint;
    const Status enqueued =
        aside ? endpoint.EnqueueStart(*execution.members, call, stream)
              : endpoint.Enqueue(*execution.members, call, stream);
    if (enqueued.ok()) return xffi::Error::Success();
    // The peers wait for the call, but it could not be enqueued. Abort tells
    // the peers, and ends all collectives of this process.
    endpoint.Abort(enqueued);
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

// Starts a call that has one operand. The first result is the result of the
// call, but its contents are not complete before the call ends. The second is a
// token, which only orders later operations.
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

// Ends a call. It takes the first operand of the start, the first result of the
// start, and any number of other values. Some of these values are other buffers
// of the start, which must stay alive until the call ends. Others are values
// that must be computed before `done` runs. The result of `done` is aliased to
// the first result of the start.
xffi::Error Done(cudaStream_t stream, int32_t ordinal,
                 xffi::AnyBuffer /*input*/, xffi::AnyBuffer started,
                 xffi::RemainingArgs /*kept, after*/,
                 xffi::Result<xffi::AnyBuffer> output) {
  return Cuda::Finish(EnqueueDone(stream, ordinal, started, *output));
}

// Takes the token of a start and any number of values, each aliased to a
// result. It does nothing at run time. It only makes XLA run the users of its
// results after the start.
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
                              jax_cxl::ffi::CallSite::Make,
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
