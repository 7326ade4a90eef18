#ifndef JAX_CXL_COMM_ORDER_NEGOTIATION_H_
#define JAX_CXL_COMM_ORDER_NEGOTIATION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/plan_cache.h"
#include "cc/comm/order/submissions.h"
#include "cc/engine/cpu/executor.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/channel_layout.h"

namespace jax_cxl::comm {

// A call that this rank has started, and how it is executed.
struct StartedCall {
  std::unique_ptr<Call> call;
  std::shared_ptr<const CallPlan> call_plan;
};

// Matches the calls of all members of a group, whatever order they start them
// in, and executes the small ones.
//
// XLA starts independent calls in a different order on every rank, so the n-th
// call of one rank is not the n-th of another. Every member submits a call when
// it starts it. For each call, every member keeps a *match*: which members have
// submitted the call. Members compare descriptors as they come: ranks that
// disagree about a call all find an error that names both versions, before any
// data is read.
//
// The payload of an *eager* call comes with the submissions. Such a call has
// finished as soon as its match is complete: it takes no slot, so it needs no
// order. All other calls share the group's bounded slots, in one order: the
// first member, the leader, announces a call once its match is complete, and
// all members execute calls in the order of announcements. Such a call is
// executed only when every rank has started it. It then needs nothing but the
// other ranks' progress, so no call holds slots that some rank has yet to
// start. (docs/decisions/0002, 0006)
//
// Not thread-safe.
class Negotiation {
 public:
  // `blocks[m]` is member m's control block; submissions can carry
  // `payload_bytes`.
  Negotiation(const pool::Doorbells& doorbells,
              const std::vector<pool::ControlBlock*>& blocks,
              const Group& group, uint64_t payload_bytes);

  // Queues the submission of a call that this rank has started.
  void Submit(StartedCall started);

  // Sends submissions, reads those of the others and executes eager calls,
  // which it appends to `finished`. True if anything moved. Errors: kMismatch,
  // kDataLoss, kResourceExhausted.
  Result<bool> Exchange(std::vector<Finished>* finished, cpu::Traffic* traffic);

  // The next call of the group's order, none while some member has not started
  // it. `released_calls` is how many calls every other member is known to have
  // left behind: their announcements may be overwritten. Errors: kDataLoss.
  Result<StartedCall> Next(uint64_t released_calls);

  // Calls submitted here that are neither finished nor returned by Next.
  size_t pending() const { return pending_; }

  // Members that this rank's oldest pending call waits for.
  std::vector<int> WaitingFor() const;
  // That call; null if none is pending.
  const Call* oldest() const;

  // Takes all pending calls out, to be failed.
  std::vector<std::unique_ptr<Call>> TakePending();

 private:
  // What is known of a call that some member has submitted.
  struct Match {
    uint64_t identity = 0;
    StartedCall mine;  // no call: yet to be started here, or executed
    bool taken = false;
    bool lacks_payload = false;  // some submission came without a payload
    int num_submitted = 0;
    // By member.
    std::vector<bool> submitted;
    std::vector<const std::byte*> payloads;
    std::vector<std::byte> kept;  // payloads that came before the last one
    // The version to compare with.
    int first = 0;
    pool::CallDescriptor descriptor;
    uint32_t name = 0;
  };
  using Matches = std::vector<std::unique_ptr<Match>>;

  bool leads() const { return group_.self == 0; }
  int size() const { return static_cast<int>(blocks_.size()); }
  Match* Find(uint64_t identity) const;
  Match* Add(uint64_t identity);
  void Remove(Match* match);
  Status CheckMemory(int member) const;
  Match* OldestPending() const;

  Result<bool> SendSubmissions(std::vector<Finished>* finished,
                               cpu::Traffic* traffic);
  Result<bool> ReadSubmissions(std::vector<Finished>* finished,
                               cpu::Traffic* traffic);
  Status AddMember(Match* match, int member,
                   const pool::CallDescriptor& descriptor, uint32_t name);
  void KeepPayload(Match* match, int member, const Submissions::Entry& entry);
  Status OnComplete(Match* match, std::vector<Finished>* finished,
                    cpu::Traffic* traffic);
  Status Disagreement(const Match& match, int member,
                      const pool::CallDescriptor& descriptor,
                      uint32_t name) const;
  Result<StartedCall> Announce(uint64_t released_calls);
  Result<StartedCall> Follow();
  StartedCall Take(Match* match);

  pool::Doorbells doorbells_;
  std::vector<pool::ControlBlock*> blocks_;
  Group group_;
  uint64_t payload_bytes_;
  Submissions submissions_;

  Matches matches_;     // in the order in which they were heard of first
  Matches spare_;       // to be used again
  size_t pending_ = 0;  // rolls with a call of this rank
  std::deque<Match*> unsent_;
  std::deque<Match*> complete_;  // leader: yet to be announced
  uint64_t announcements_ = 0;   // announced (leader) or followed
  std::vector<const std::byte*> sources_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ORDER_NEGOTIATION_H_
