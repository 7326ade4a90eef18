#include "cc/ffi/handlers.h"

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cc/comm/runtime.h"
#include "cc/engine/cpu/taken_rows.h"
#include "cc/ffi/call_site.h"
#include "cc/ffi/errors.h"
#include "cc/plan/plan.h"
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

// Submits one execution of `site` to this device's endpoint. XLA keeps the
// buffers alive until the future is complete.
xffi::Future DispatchToEndpoint(
    xffi::RunId run_id, int32_t device_ordinal, CallSite* site,
    const void* input, void* output, std::vector<int64_t> table = {},
    std::shared_ptr<const cpu::TakenRows> rows = nullptr) {
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
  const auto identity =
      site->NextIdentity(runtime->number(), run_id.run_id, device_ordinal);
  if (!identity.ok()) return Failed(identity.status());
  std::unique_ptr<comm::Call> call = std::move(execution->call);
  call->identity = *identity;
  call->table = std::move(table);
  call->rows = std::move(rows);

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

xffi::Future Ragged(xffi::RunId run_id, int32_t device_ordinal, CallSite* site,
                    xffi::AnyBuffer input, xffi::AnyBuffer output,
                    xffi::AnyBuffer table,
                    xffi::Result<xffi::AnyBuffer> result) {
  const plan::Request& request = site->prototype().request;
  const size_t entries = 4 * request.num_ranks * request.ragged.slices;
  const Status status =
      site->CheckBuffers(input.size_bytes(), result->size_bytes());
  if (!status.ok()) return Failed(status);
  if (table.element_count() != entries ||
      output.untyped_data() != result->untyped_data())
    return Failed(Error(Code::kInternal, site->prototype().name,
                        " got other buffers than it was lowered for"));
  std::vector<int64_t> wide;
  if (table.element_type() == xffi::DataType::S32) {
    const int32_t* narrow = table.typed_data<int32_t>();
    wide.assign(narrow, narrow + entries);
  } else {
    const int64_t* values = table.typed_data<int64_t>();
    wide.assign(values, values + entries);
  }
  return DispatchToEndpoint(run_id, device_ordinal, site, input.untyped_data(),
                            result->untyped_data(), std::move(wide));
}

// Rows of the output that no index fills are zeros.
void ZeroRows(const plan::Request& request, std::span<const int32_t> indices,
              std::byte* output) {
  const uint64_t row = plan::OutputBytes(request) / indices.size();
  const uint64_t rows = request.rows.table * request.num_ranks;
  for (size_t i = 0; i < indices.size(); ++i)
    if (indices[i] < 0 || static_cast<uint64_t>(indices[i]) >= rows)
      std::memset(output + i * row, 0, row);
}

// Operand, indices, and which rows of the operand are published if that is not
// all of them.
xffi::Future TakeRows(xffi::RunId run_id, int32_t device_ordinal,
                      CallSite* site, xffi::AnyBuffer input,
                      xffi::AnyBuffer indices, xffi::RemainingArgs published,
                      xffi::Result<xffi::AnyBuffer> output) {
  const plan::Request& request = site->prototype().request;
  const Status status =
      site->CheckBuffers(input.size_bytes(), output->size_bytes());
  if (!status.ok()) return Failed(status);
  std::span<const uint8_t> mask;
  if (published.size() == 1) {
    auto buffer = published.get<xffi::AnyBuffer>(0);
    if (buffer)
      mask = {static_cast<const uint8_t*>(buffer->untyped_data()),
              buffer->size_bytes()};
  }
  if (request.op != plan::Op::kTakeRows ||
      indices.element_type() != xffi::DataType::S32 ||
      indices.element_count() != request.rows.taken || published.size() > 1 ||
      mask.size() != published.size() * request.rows.table)
    return Failed(Error(Code::kInternal, site->prototype().name,
                        " got other buffers than it was lowered for"));
  const std::span<const int32_t> taken(indices.typed_data<int32_t>(),
                                       indices.element_count());
  ZeroRows(request, taken, static_cast<std::byte*>(output->untyped_data()));
  return DispatchToEndpoint(run_id, device_ordinal, site, input.untyped_data(),
                            output->untyped_data(), {},
                            std::make_shared<const cpu::TakenRows>(
                                cpu::TakenRows::Of(request, taken, mask)));
}

xffi::Future Barrier(xffi::RunId run_id, int32_t device_ordinal, CallSite* site,
                     xffi::RemainingArgs arguments,
                     xffi::RemainingRets results) {
  for (size_t i = 0; i < arguments.size() && i < results.size(); ++i) {
    auto argument = arguments.get<xffi::AnyBuffer>(i);
    auto result = results.get<xffi::AnyBuffer>(i);
    // The lowering aliases the result, so XLA has already put the value there.
    if (!argument || !result ||
        argument->untyped_data() != (*result)->untyped_data())
      return Failed(Error(Code::kInternal,
                          "barrier got a result that is not its operand"));
  }
  return DispatchToEndpoint(run_id, device_ordinal, site, nullptr, nullptr);
}

}  // namespace
}  // namespace jax_cxl::ffi

namespace xffi = xla::ffi;
using jax_cxl::ffi::CallSite;

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_instantiate, CallSite::Make,
                              xffi::Ffi::BindInstantiate().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_collective, jax_cxl::ffi::Collective,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::RunId>()
                                  .Ctx<xffi::DeviceOrdinal>()
                                  .Ctx<xffi::State<CallSite>>()
                                  .Arg<xffi::AnyBuffer>()
                                  .Ret<xffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_ragged, jax_cxl::ffi::Ragged,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::RunId>()
                                  .Ctx<xffi::DeviceOrdinal>()
                                  .Ctx<xffi::State<CallSite>>()
                                  .Arg<xffi::AnyBuffer>()
                                  .Arg<xffi::AnyBuffer>()
                                  .Arg<xffi::AnyBuffer>()
                                  .Ret<xffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_take_rows, jax_cxl::ffi::TakeRows,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::RunId>()
                                  .Ctx<xffi::DeviceOrdinal>()
                                  .Ctx<xffi::State<CallSite>>()
                                  .Arg<xffi::AnyBuffer>()
                                  .Arg<xffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<xffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_barrier, jax_cxl::ffi::Barrier,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::RunId>()
                                  .Ctx<xffi::DeviceOrdinal>()
                                  .Ctx<xffi::State<CallSite>>()
                                  .RemainingArgs()
                                  .RemainingRets());
