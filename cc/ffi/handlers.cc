// XLA custom-call handlers of collectives for platform "cpu". All except
// check_slices share one Instantiate stage, whose state is a CallSite.

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cc/comm/runtime.h"
#include "cc/engine/cpu/huge_pages.h"
#include "cc/ffi/binding.h"
#include "cc/ffi/call/call_site.h"
#include "cc/ffi/errors/errors.h"
#include "cc/ffi/row_buffers.h"
#include "cc/plan/plan.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// Executes a permutation for a rank that is alone in its cycle or chain. The
// rank keeps its own block, or gets zeros.
void PermuteAlone(const comm::Call& call) {
  const uint64_t bytes = plan::OutputBytes(call.request);
  if (call.request.sources[0] < 0)
    std::memset(call.output, 0, bytes);
  else
    std::memcpy(call.output, call.input, bytes);
}

// The platform of CPUs. binding.h explains the members.
struct Cpu {
  using Bound = xffi::RunId;
  using Context = xffi::RunId;
  using Outcome = xffi::Future;
  using Runtime = comm::Runtime;

  static void Complete(xffi::Promise& promise, const Status& status) {
    if (status.ok())
      promise.SetAvailable();
    else
      promise.SetError(ToFfiError(status));
  }

  static xffi::Future Finish(const Status& status) {
    xffi::Promise promise;
    xffi::Future future(promise);
    Complete(promise, status);
    return future;
  }

  // Starts the call, which may still use its buffers after this function has
  // returned: XLA keeps them alive until the future is complete.
  static xffi::Future Start(xffi::RunId run_id, int32_t ordinal,
                            const Device<Cpu>& device, CallSite* site,
                            CallSite::Execution execution,
                            const RowBuffers* rows) {
    const std::vector<int32_t>& members = *execution.members;
    std::unique_ptr<comm::Call> call = std::move(execution.call);
    if (members.size() == 1 && call->request.op == plan::Op::kPermute) {
      PermuteAlone(*call);
      return Finish(OkStatus());
    }
    const Status identified =
        site->Identify(run_id.run_id, ordinal, call.get());
    if (!identified.ok()) return Finish(identified);
    cpu::PreferHugePages(call->output, plan::OutputBytes(call->request));
    if (rows != nullptr) {
      call->row_operands = rows->operands;
      comm::SetRows(call.get());
    }

    xffi::Promise promise;
    xffi::Future future(promise);
    call->done = [promise](const Status& status) mutable {
      Complete(promise, status);
    };
    const std::optional<Status> finished =
        site->grid().processes > 0
            ? device.runtime->level_calls()->Start(members, site->grid(),
                                                   std::move(call))
            : device.local->endpoint->StartCall(members, std::move(call));
    if (!finished) return future;
    return Finish(*finished);
  }

  // Checks that XLA has placed a result in the memory of its operand, as the
  // lowering asks. Then there is nothing to copy.
  static Status Keep(xffi::RunId /*run_id*/, const void* operand,
                     const void* result, uint64_t /*bytes*/) {
    if (operand == result) return OkStatus();
    return Error(Code::kInternal,
                 "XLA has copied a result that the lowering aliases to an "
                 "operand. Report this, with the versions of jax and jaxlib");
  }

  static Result<std::span<const std::byte>> ReadTable(
      xffi::RunId /*run_id*/, const xffi::AnyBuffer& table) {
    return std::span(static_cast<const std::byte*>(table.untyped_data()),
                     table.size_bytes());
  }

  static uint64_t ScratchBytes(const plan::Request& /*request*/) { return 0; }
};

}  // namespace
}  // namespace jax_cxl::ffi

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_cxl_instantiate, jax_cxl::ffi::CallSite::Make,
                              xla::ffi::Ffi::BindInstantiate().Attrs());

JAX_CXL_DEFINE_HANDLERS(jax_cxl, jax_cxl::ffi::Cpu);
