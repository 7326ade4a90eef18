#ifndef JAX_CXL_FFI_CALL_CALL_SITE_H_
#define JAX_CXL_FFI_CALL_CALL_SITE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/engine/cpu/member_buffers.h"
#include "cc/ffi/call/program_sites.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// Counts how often each launch of a program executes one call, on each device
// of this process. If a loop executes the call several times in a launch, the
// device starts these executions in order. Launches may start in any order, and
// at the same time.
//
// Thread-safe.
class Executions {
 public:
  // Returns how often the launch with XLA's id `run_id` has executed the call
  // on this device before.
  uint64_t Next(int32_t device, int64_t run_id) {
    std::lock_guard lock(mutex_);
    std::deque<Launch>& launches = launches_[device];
    const auto found = std::find_if(
        launches.rbegin(), launches.rend(),
        [run_id](const Launch& launch) { return launch.run_id == run_id; });
    if (found == launches.rend()) {
      launches.push_back({run_id, 1});
      if (launches.size() > kRemembered) launches.pop_front();
      return 0;
    }
    // Move the launch to the end, so that it is not forgotten while it loops.
    std::rotate(launches.rbegin(), found, found + 1);
    return launches.back().executions++;
  }

 private:
  struct Launch {
    int64_t run_id;
    uint64_t executions;
  };
  // How many launches of a device are remembered: those that executed the call
  // last. This is enough, because XLA lets at most 32 launches be under way at
  // the same time.
  static constexpr size_t kRemembered = 64;

  std::mutex mutex_;
  // By device. The launch that executed the call last is at the end.
  std::unordered_map<int32_t, std::deque<Launch>> launches_;
};

// One custom call of one compiled program: its attributes, and the identities
// of its executions. XLA makes a CallSite for each call when it loads a
// program.
//
// The *identity* of a call tells the ranks of a group that they make the same
// call, in whatever order each rank starts its calls, and whichever calls a
// failed launch has left out. It is a hash of four values, which are equal on
// all ranks that run the same programs:
//
//  - The program (LoadedProgram::hash).
//  - The number of the call in the program. If the compiler hook has changed
//    the program (jax_cxl/_takeover/hook.py), the hook has numbered the calls.
//    Otherwise ProgramSites numbers them.
//  - The number of the launch among the launches of the program. JAX has
//    counted them (LoadedProgram::run_ids_from).
//  - The number of the execution in the launch, because a loop executes a call
//    several times (class Executions).
//
// docs/decisions/0002 explains why the identity consists of these values. Calls
// between GPUs have no identities. They are known by their place
// (comm::GroupRecord): XLA orders them in the same way on all ranks.
//
// Identify is thread-safe. Everything else is constant.
class CallSite {
 public:
  // The id by which XLA knows this class. It is registered before any handler
  // whose state is a CallSite.
  static xla::ffi::TypeId id;

  // Makes a CallSite from the attributes that jax_cxl/_lowering/contract.py
  // makes. Fails with an internal error if an attribute is missing or out of
  // range.
  static xla::ffi::ErrorOr<std::unique_ptr<CallSite>> Make(
      xla::ffi::Dictionary attributes);

  // Returns the key under which ProgramSites::NoteLine notes the source line of
  // a call with these properties. Calls of a program with equal properties
  // share a key.
  static std::string LineKey(std::string_view name, int op, int reduce_op,
                             int dtype, int64_t count);

  // The call without buffers, rank and identity. The group of a permutation is
  // split into smaller groups of ranks that send to each other. Here, `sources`
  // and the number of ranks are still those of the whole group.
  const comm::Call& prototype() const { return prototype_; }

  // One execution of the call by one rank, and the ranks of the rank's group.
  struct Execution {
    const std::vector<int32_t>* members = nullptr;
    std::unique_ptr<comm::Call> call;  // without its identity
  };
  // Returns the execution of the call by `rank`, with these buffers. Fails with
  // kInvalidArgument if the rank is in none of the groups.
  Result<Execution> MakeExecution(int rank, const void* input,
                                  void* output) const;
  // Fails with kInternal unless the buffers have the sizes for which the call
  // was lowered.
  Status CheckBuffers(size_t input_bytes, size_t output_bytes) const;

  // How the ranks of each group are spread over processes, if the call runs in
  // levels (comm::LevelCalls). Otherwise the grid is empty.
  const cpu::Grid& grid() const { return grid_; }

  int generation() const { return generation_; }

  // Sets the identity of `call`, the next execution of this site on device
  // `device_ordinal`, in the launch to which XLA has given the id `run_id`.
  // Also sets what messages say about the launch. Fails with kInternal if the
  // launch has no certain number.
  Status Identify(int64_t run_id, int32_t device_ordinal, comm::Call* call);

 private:
  CallSite() = default;

  void AddGroup(const std::vector<int32_t>& ranks,
                const std::vector<int32_t>& sources);

  comm::Call prototype_;
  std::vector<std::vector<int32_t>> groups_;
  // For a permutation, the `sources` of each group, as places in the group.
  // Otherwise empty.
  std::vector<std::vector<int32_t>> sources_;
  std::unordered_map<int32_t, int> group_of_rank_;
  int64_t number_ = 0;  // in the program
  int generation_ = 0;
  cpu::Grid grid_;
  std::shared_ptr<const LoadedProgram> program_;
  Executions executions_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_CALL_CALL_SITE_H_
