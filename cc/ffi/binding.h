#ifndef JAX_CXL_FFI_BINDING_H_
#define JAX_CXL_FFI_BINDING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "cc/base/status.h"
#include "cc/ffi/call/call_site.h"
#include "cc/ffi/errors/errors.h"
#include "cc/ffi/row_buffers.h"
#include "cc/plan/plan.h"
#include "xla/ffi/api/ffi.h"

// The code that the handlers for CPUs and GPUs share. It makes a call from the
// buffers that XLA passes. The template parameter `Platform` is a class that
// defines what differs:
//
//   Context        the type of the context that XLA passes to a handler: the id
//                  of the launch on CPUs, the stream on GPUs
//   Bound          the argument of Ctx<> that makes XLA pass the context
//   Outcome        what a handler returns
//   Runtime        comm::Runtime or comm::DeviceRuntime
//   Finish         makes an Outcome from a status
//   Start          starts a call; `rows` is null unless the call moves rows
//   Keep           makes sure that a result has the contents of its operand
//   ReadTable      returns the contents of a buffer in the host's memory
//   ScratchBytes   returns the size of the scratch memory that an operation
//                  needs to move rows
namespace jax_cxl::ffi {

template <typename Platform>
struct Device {
  std::shared_ptr<typename Platform::Runtime> runtime;
  const typename Platform::Runtime::Local* local = nullptr;
};

// Returns the runtime of this process, and the runtime's entry (`local`) for
// the device to which XLA has given the number `ordinal`.
template <typename Platform>
Result<Device<Platform>> FindDevice(int32_t ordinal) {
  Device<Platform> device;
  device.runtime = Platform::Runtime::Current();
  if (device.runtime == nullptr)
    return Error(Code::kFailedPrecondition,
                 "a compiled program calls a collective, but jax_cxl is not "
                 "running; call jax_cxl.initialize() first");
  device.local = device.runtime->Find(ordinal);
  if (device.local == nullptr)
    return Error(Code::kFailedPrecondition, "device ", ordinal,
                 " did not exist when jax_cxl.initialize() ran; call "
                 "jax_cxl.shutdown() and jax_cxl.initialize() again");
  return device;
}

template <typename Platform>
class Handlers {
  using AnyBuffer = xla::ffi::AnyBuffer;
  using Arguments = xla::ffi::RemainingArgs;
  using Results = xla::ffi::RemainingRets;
  using Context = typename Platform::Context;
  using Outcome = typename Platform::Outcome;

 public:
  static Outcome Collective(Context context, int32_t ordinal, CallSite* site,
                            AnyBuffer input,
                            xla::ffi::Result<AnyBuffer> output) {
    const Status status =
        site->CheckBuffers(input.size_bytes(), output->size_bytes());
    if (!status.ok()) return Platform::Finish(status);
    return Execute(context, ordinal, site, input.untyped_data(),
                   output->untyped_data());
  }

  // Executes a take_rows or a ragged_all_to_all. row_buffers.h lists the
  // operands and results.
  static Outcome Rows(Context context, int32_t ordinal, CallSite* site,
                      Arguments arguments, Results results) {
    const plan::Request& request = site->prototype().request;
    const Result<RowBuffers> buffers = RowBuffers::Of(
        *site, arguments, results, Platform::ScratchBytes(request));
    if (!buffers.ok()) return Platform::Finish(buffers.status());
    if (buffers->before != nullptr && plan::OutputBytes(request) > 0) {
      const Status kept =
          Platform::Keep(context, buffers->before, buffers->output,
                         plan::OutputBytes(request));
      if (!kept.ok()) return Platform::Finish(kept);
    }
    return Execute(context, ordinal, site, buffers->input, buffers->output,
                   &*buffers);
  }

  // Executes a barrier. It takes any number of operands, each aliased to a
  // result.
  static Outcome Barrier(Context context, int32_t ordinal, CallSite* site,
                         Arguments arguments, Results results) {
    const Status status = KeepAll(context, arguments, results);
    if (!status.ok()) return Platform::Finish(status);
    return Execute(context, ordinal, site, nullptr, nullptr);
  }

  // Checks the tables of slices in the first operand (row_buffers.h). Any
  // number of other operands may follow. Each operand is aliased to a result.
  static xla::ffi::Error CheckSlices(Context context, int32_t ordinal,
                                     xla::ffi::Span<const int64_t> rows,
                                     Arguments arguments, Results results) {
    const Status status = CheckTables(context, rows, arguments, results);
    if (status.ok()) return xla::ffi::Error::Success();
    // This program fails here. Tell the other ranks, because they may wait for
    // later collectives of this program.
    if (auto device = FindDevice<Platform>(ordinal); device.ok())
      device->local->endpoint->Abort(status);
    return ToFfiError(status);
  }

  // Makes sure that each result has the contents of the operand of the same
  // number.
  static Status KeepAll(Context context, const Arguments& arguments,
                        const Results& results) {
    for (size_t i = 0; i < results.size(); ++i) {
      auto argument = arguments.get<AnyBuffer>(i);
      auto result = results.get<AnyBuffer>(i);
      if (!argument || !result ||
          argument->size_bytes() != (*result)->size_bytes())
        return NotLowered("the call");
      if (argument->size_bytes() > 0)
        CXL_RETURN_IF_ERROR(Platform::Keep(context, argument->untyped_data(),
                                           (*result)->untyped_data(),
                                           argument->size_bytes()));
    }
    return OkStatus();
  }

 private:
  static Outcome Execute(Context context, int32_t ordinal, CallSite* site,
                         const void* input, void* output,
                         const RowBuffers* rows = nullptr) {
    const Result<Device<Platform>> device = FindDevice<Platform>(ordinal);
    if (!device.ok()) return Platform::Finish(device.status());
    if (site->generation() != device->runtime->generation())
      return Platform::Finish(
          Error(Code::kFailedPrecondition, site->prototype().name,
                " is called by a program that was compiled before the last "
                "jax_cxl.initialize() or jax_cxl.regroup(); compile it again, "
                "for the devices that regroup returned"));
    Result<CallSite::Execution> execution =
        site->MakeExecution(device->local->rank, input, output);
    if (!execution.ok()) return Platform::Finish(execution.status());
    return Platform::Start(context, ordinal, *device, site,
                           *std::move(execution), rows);
  }

  static Status CheckTables(Context context, xla::ffi::Span<const int64_t> rows,
                            const Arguments& arguments,
                            const Results& results) {
    CXL_RETURN_IF_ERROR(KeepAll(context, arguments, results));
    auto tables = arguments.get<AnyBuffer>(0);
    if (!tables) return NotLowered("check_slices");
    CXL_ASSIGN_OR_RETURN(const auto table,
                         Platform::ReadTable(context, *tables));
    return CheckSliceTables(*tables, rows, table.data());
  }
};

// Binds the parameters with which every handler of a call begins: context,
// device ordinal and CallSite.
template <typename Platform>
auto BindCall() {
  return xla::ffi::Ffi::Bind()
      .Ctx<typename Platform::Bound>()
      .template Ctx<xla::ffi::DeviceOrdinal>()
      .template Ctx<xla::ffi::State<CallSite>>();
}

// Binds the parameters of BindCall, and any number of operands and results.
template <typename Platform>
auto BindAnyBuffers() {
  return BindCall<Platform>().RemainingArgs().RemainingRets();
}

template <typename Platform>
auto BindCheckSlices() {
  return xla::ffi::Ffi::Bind()
      .Ctx<typename Platform::Bound>()
      .template Ctx<xla::ffi::DeviceOrdinal>()
      .template Attr<xla::ffi::Span<const int64_t>>("rows")
      .RemainingArgs()
      .RemainingRets();
}

}  // namespace jax_cxl::ffi

// Defines the symbols <prefix>_collective, _rows, _barrier and _check_slices.
#define JAX_CXL_DEFINE_HANDLERS(prefix, Platform)                              \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(prefix##_collective,                           \
                                jax_cxl::ffi::Handlers<Platform>::Collective,  \
                                jax_cxl::ffi::BindCall<Platform>()             \
                                    .Arg<xla::ffi::AnyBuffer>()                \
                                    .Ret<xla::ffi::AnyBuffer>());              \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(prefix##_rows,                                 \
                                jax_cxl::ffi::Handlers<Platform>::Rows,        \
                                jax_cxl::ffi::BindAnyBuffers<Platform>());     \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(prefix##_barrier,                              \
                                jax_cxl::ffi::Handlers<Platform>::Barrier,     \
                                jax_cxl::ffi::BindAnyBuffers<Platform>());     \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(prefix##_check_slices,                         \
                                jax_cxl::ffi::Handlers<Platform>::CheckSlices, \
                                jax_cxl::ffi::BindCheckSlices<Platform>())

#endif  // JAX_CXL_FFI_BINDING_H_
