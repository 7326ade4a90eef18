#include "cc/ffi/handlers.h"

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/comm/runtime.h"
#include "cc/engine/cpu/huge_pages.h"
#include "cc/engine/cpu/taken_rows.h"
#include "cc/ffi/call_site.h"
#include "cc/ffi/errors.h"
#include "cc/ffi/row_buffers.h"
#include "cc/ffi/slice_check.h"
#include "cc/plan/plan.h"
#include "cc/plan/slices.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

xffi::Future Failed(const Status& status) {
  xffi::Promise promise;
  xffi::Future future(promise);
  promise.SetError(ToFfiError(status));
  return future;
}

xffi::Future Completed() {
  xffi::Promise promise;
  xffi::Future future(promise);
  promise.SetAvailable();
  return future;
}

// Executes a permutation in which the rank has no part but its own.
void PermuteAlone(const comm::Call& call) {
  const uint64_t bytes = plan::OutputBytes(call.request);
  if (call.request.sources[0] < 0)
    std::memset(call.output, 0, bytes);
  else
    std::memcpy(call.output, call.input, bytes);
}

// Submits one execution of `site` to this device's endpoint. XLA keeps the
// buffers alive until the future is complete.
//
// `set_rows(call)` adds what an operation that moves rows needs.
xffi::Future DispatchToEndpoint(
    xffi::RunId run_id, int32_t device_ordinal, CallSite* site,
    const void* input, void* output,
    const std::function<void(comm::Call*)>& set_rows = nullptr) {
  std::shared_ptr<comm::Runtime> runtime = comm::Runtime::Current();
  if (runtime == nullptr)
    return Failed(Error(Code::kFailedPrecondition,
                        "a compiled program calls a collective, but jax_cxl is "
                        "not running; call jax_cxl.initialize() first"));
  if (site->generation() != runtime->generation())
    return Failed(Error(Code::kFailedPrecondition, site->prototype().name,
                        " is called by a program that was compiled before "
                        "jax_cxl.regroup(); compile it again, for a mesh of "
                        "the devices that regroup returned"));
  const comm::Runtime::Local* local = runtime->Find(device_ordinal);
  if (local == nullptr)
    return Failed(Error(Code::kFailedPrecondition, "device ", device_ordinal,
                        " was not there when jax_cxl.initialize() ran"));
  Result<CallSite::Execution> execution =
      site->MakeExecution(local->rank, input, output);
  if (!execution.ok()) return Failed(execution.status());
  if (execution->members->size() == 1 &&
      execution->call->request.op == plan::Op::kPermute) {
    PermuteAlone(*execution->call);
    return Completed();
  }
  const auto identity =
      site->NextIdentity(runtime->number(), run_id.run_id, device_ordinal);
  if (!identity.ok()) return Failed(identity.status());
  std::unique_ptr<comm::Call> call = std::move(execution->call);
  cpu::PreferHugePages(output, plan::OutputBytes(call->request));
  call->identity = *identity;
  if (set_rows != nullptr) set_rows(call.get());

  xffi::Promise promise;
  xffi::Future future(promise);
  call->done = [promise](const Status& status) mutable {
    if (status.ok())
      promise.SetAvailable();
    else
      promise.SetError(ToFfiError(status));
  };
  std::optional<Status> finished =
      site->grid().processes > 0
          ? runtime->level_calls()->Start(*execution->members, site->grid(),
                                          std::move(call))
          : local->endpoint->StartCall(*execution->members, std::move(call));
  if (!finished) return future;
  return finished->ok() ? Completed() : Failed(*finished);
}

xffi::Future Collective(xffi::RunId run_id, int32_t device_ordinal,
                        CallSite* site, xffi::AnyBuffer input,
                        xffi::Result<xffi::AnyBuffer> output) {
  const Status status =
      site->CheckBuffers(input.size_bytes(), output->size_bytes());
  if (!status.ok()) return Failed(status);
  return DispatchToEndpoint(run_id, device_ordinal, site, input.untyped_data(),
                            output->untyped_data());
}

xffi::Future TakeRows(xffi::RunId run_id, int32_t device_ordinal,
                      CallSite* site, const RowBuffers& buffers) {
  cpu::ZeroRows(site->prototype().request, buffers.indices, buffers.output);
  return DispatchToEndpoint(
      run_id, device_ordinal, site, buffers.input, buffers.output,
      [&](comm::Call* call) {
        call->rows = std::make_shared<cpu::TakenRows>(cpu::TakenRows::Of(
            call->request, buffers.indices, buffers.published));
      });
}

Status NotAliased(std::string_view name) {
  return Error(Code::kInternal, name,
               ": XLA has copied a result that the lowering aliases to an "
               "operand. Report this, with the versions of jax and jaxlib");
}

xffi::Future Ragged(xffi::RunId run_id, int32_t device_ordinal, CallSite* site,
                    const RowBuffers& buffers) {
  if (buffers.before != buffers.output)
    return Failed(NotAliased(site->prototype().name));
  return DispatchToEndpoint(
      run_id, device_ordinal, site, buffers.input, buffers.output,
      [&](comm::Call* call) {
        comm::SetSlices(
            call, plan::WideSlices(buffers.slices, buffers.slice_entry_bytes));
      });
}

xffi::Future Rows(xffi::RunId run_id, int32_t device_ordinal, CallSite* site,
                  xffi::RemainingArgs arguments, xffi::RemainingRets results) {
  const Result<RowBuffers> buffers =
      RowBuffers::Of(*site, arguments, results, /*scratch_bytes=*/0);
  if (!buffers.ok()) return Failed(buffers.status());
  return site->prototype().request.op == plan::Op::kTakeRows
             ? TakeRows(run_id, device_ordinal, site, *buffers)
             : Ragged(run_id, device_ordinal, site, *buffers);
}

// Whether XLA has put each result where its operand is, as the lowering asks.
bool AreAliased(const xffi::RemainingArgs& arguments,
                const xffi::RemainingRets& results) {
  for (size_t i = 0; i < arguments.size() && i < results.size(); ++i) {
    auto argument = arguments.get<xffi::AnyBuffer>(i);
    auto result = results.get<xffi::AnyBuffer>(i);
    if (!argument || !result ||
        argument->size_bytes() != (*result)->size_bytes() ||
        (argument->size_bytes() > 0 &&
         argument->untyped_data() != (*result)->untyped_data()))
      return false;
  }
  return true;
}

xffi::Future Barrier(xffi::RunId run_id, int32_t device_ordinal, CallSite* site,
                     xffi::RemainingArgs arguments,
                     xffi::RemainingRets results) {
  if (!AreAliased(arguments, results)) return Failed(NotAliased("barrier"));
  return DispatchToEndpoint(run_id, device_ordinal, site, nullptr, nullptr);
}

// The lowering aliases each result to its operand. The first one is the tables.
xffi::Error CheckSlices(int32_t device_ordinal, xffi::Span<const int64_t> rows,
                        xffi::RemainingArgs arguments,
                        xffi::RemainingRets results) {
  if (!AreAliased(arguments, results) || arguments.size() < 1)
    return ToFfiError(NotAliased("check_slices"));
  const auto tables = *arguments.get<xffi::AnyBuffer>(0);
  const Status status = CheckSliceTables(
      tables, rows, static_cast<const std::byte*>(tables.untyped_data()));
  if (status.ok()) return xffi::Error::Success();
  // Other ranks may wait for the collectives that this program now lacks.
  if (const auto runtime = comm::Runtime::Current())
    if (const auto* local = runtime->Find(device_ordinal))
      local->endpoint->Abort(status);
  return ToFfiError(status);
}

// Binds the first parameters of every handler of a call.
auto BindCall() {
  return xffi::Ffi::Bind()
      .Ctx<xffi::RunId>()
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_instantiate, CallSite::Make,
                              xffi::Ffi::BindInstantiate().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_collective, jax_cxl::ffi::Collective,
    BindCall().Arg<xffi::AnyBuffer>().Ret<xffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_rows, jax_cxl::ffi::Rows,
                              BindAnyBuffers());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_barrier, jax_cxl::ffi::Barrier,
                              BindAnyBuffers());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_check_slices, jax_cxl::ffi::CheckSlices,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::DeviceOrdinal>()
                                  .Attr<xffi::Span<const int64_t>>("rows")
                                  .RemainingArgs()
                                  .RemainingRets());
