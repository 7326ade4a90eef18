#ifndef JAX_CXL_COMM_ORDER_IN_ORDER_H_
#define JAX_CXL_COMM_ORDER_IN_ORDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/backoff.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/plan_cache.h"
#include "cc/comm/connect/connection.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/health/wait_monitor.h"
#include "cc/comm/order/submissions.h"
#include "cc/comm/record/recorder.h"
#include "cc/engine/cpu/executor.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// A group whose members all make the same calls in the same order: those of one
// C++ program, or of a stream. The number of a call is its identity, nothing is
// negotiated, and the caller's thread does everything. Members still tell each
// other what they call, and compare before they read any data. Who reads
// nothing, as the root of a broadcast, does not wait, and compares later.
//
// It has memory of its own, apart from the group's Channel. Endpoint opens it.
//
// Not thread-safe.
class InOrder {
 public:
  InOrder(pool::Pool* pool, Peers* peers, const Options& options, Group group);

  // Before the first call.
  Status Open(Arena* arena, Recorder* recorder);

  // Executes a call; returns when its output is there and its input is free.
  // Sets its identity; `done` is not used.
  // Errors: kMismatch, kPeerLost, kDeadlineExceeded, kDataLoss, or what
  // plan::MakePlan finds. The group is unusable from then on.
  Status Run(Call* call);

 private:
  // The parts of Run, on `call_`.
  Status TryRun();
  Status Connect();
  Status Start(const CallPlan& call_plan);
  Status Await(int member);
  // Compares with what the members have said of the calls so far; does not
  // wait.
  Status CatchUp();
  Result<bool> CatchUp(int member, uint64_t calls);
  Status Compare(int member, const Submissions::Entry& entry) const;
  void Pop(int member);
  Status RunRagged();
  Status RunPlan(std::shared_ptr<const plan::Plan> plan, DType dtype,
                 const std::byte* input, std::byte* output);
  void NoteProgress();
  // Nothing moved: lets time pass, and sees whether it is worth while to go on.
  // `member`: who is waited for, -1: who has yet to read my submissions.
  Status Pause(int member, bool inside, uint64_t moved);

  pool::Pool* pool_;
  Peers* peers_;
  Recorder* recorder_ = nullptr;  // once open
  Connection connection_;
  PlanCache plan_cache_;
  WaitMonitor wait_monitor_;
  uint64_t past_caches_bytes_;
  std::optional<Submissions> submissions_;  // once connected
  Call* call_ = nullptr;
  uint64_t calls_ = 0;
  uint64_t rounds_ = 0;
  // A member can be a ring ahead of what I have read, and I a ring ahead of
  // what it has.
  std::array<pool::CallDescriptor, 2 * pool::kCallRing> history_;
  std::vector<uint64_t> compared_;  // by member: calls
  Status failed_;
  Status suspicion_;  // why it may be no use to wait, since something moved
  cpu::Traffic traffic_;

  Backoff backoff_;
  int polls_ = 0;
  // By member.
  std::vector<const std::byte*> payloads_;
  std::vector<const std::byte*> sources_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ORDER_IN_ORDER_H_
