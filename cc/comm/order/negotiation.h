#ifndef JAX_CXL_COMM_ORDER_NEGOTIATION_H_
#define JAX_CXL_COMM_ORDER_NEGOTIATION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/recipes.h"
#include "cc/comm/order/submissions.h"
#include "cc/engine/cpu/executor.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/channel_layout.h"

namespace jax_cxl::comm {

// A call that this rank has started, and how it is executed.
struct StartedCall {
  std::unique_ptr<Call> call;
  std::shared_ptr<const Recipe> recipe;
};

// Matches the calls of all members of a group, whatever order they start them
// in, and executes the small ones.
//
// XLA starts independent calls in a different order on every rank, so the n-th
// call of one rank is not the n-th of another. Every member submits a call when
// it starts it, and keeps a *roll* of each call: who has submitted it. Members
// compare descriptors as they come: ranks that disagree about a call all find
// an error that names both versions, before any data is read.
//
// An *eager* call, whose payload comes with the submissions, is over as soon as
// the roll is full: it takes no slot, so no order has to be agreed on, and one
// way through the pool. All others share the group's bounded slots, in one
// order: the first member, the leader, announces a call once its roll is full,
// and everybody executes in the order of announcements. Such a call is thus
// executed only when every rank is inside it: it needs nothing but the other
// ranks' progress to finish, so slots cannot be held by a call that some rank
// has yet to start. (docs/decisions/0002, 0006)
//
// Not thread-safe.
class Negotiation {
 public:
  // `blocks[m]` is member m's control block; submissions can carry
  // `payload_bytes`.
  Negotiation(const pool::Doorbells& doorbells,
              const std::vector<pool::ControlBlock*>& blocks,
              const Group& group, uint64_t payload_bytes);

  // A call that this rank started.
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
  struct Roll {
    uint64_t identity = 0;
    StartedCall mine;  // no call: yet to be started here, or executed
    bool taken = false;
    bool silent = false;  // some submission came without a payload
    int present = 0;
    // By member.
    std::vector<bool> here;
    std::vector<const std::byte*> payloads;
    std::vector<std::byte> kept;  // payloads that came before the roll was full
    // The version to compare with.
    int first = 0;
    pool::CallDescriptor descriptor;
    uint32_t name = 0;
  };
  using Rolls = std::vector<std::unique_ptr<Roll>>;

  bool leads() const { return group_.self == 0; }
  int size() const { return static_cast<int>(blocks_.size()); }
  Roll* Find(uint64_t identity) const;
  Roll* Add(uint64_t identity);
  void Remove(Roll* roll);
  Status CheckMemory(int member) const;
  Roll* OldestPending() const;

  Result<bool> SendSubmissions(std::vector<Finished>* finished,
                               cpu::Traffic* traffic);
  Result<bool> ReadSubmissions(std::vector<Finished>* finished,
                               cpu::Traffic* traffic);
  Status Enroll(Roll* roll, int member, const pool::CallDescriptor& descriptor,
                uint32_t name);
  void Keep(Roll* roll, int member, const Submissions::Entry& entry);
  Status WhenFull(Roll* roll, std::vector<Finished>* finished,
                  cpu::Traffic* traffic);
  Status Disagreement(const Roll& roll, int member,
                      const pool::CallDescriptor& descriptor,
                      uint32_t name) const;
  Result<StartedCall> Announce(uint64_t released_calls);
  Result<StartedCall> Follow();
  StartedCall Take(Roll* roll);

  pool::Doorbells doorbells_;
  std::vector<pool::ControlBlock*> blocks_;
  Group group_;
  uint64_t payload_bytes_;
  Submissions submissions_;

  Rolls rolls_;         // in the order in which they were heard of first
  Rolls spare_;         // to be used again
  size_t pending_ = 0;  // rolls with a call of this rank
  std::deque<Roll*> unsent_;
  std::deque<Roll*> full_;      // leader: yet to be announced
  uint64_t announcements_ = 0;  // announced (leader) or followed
  std::vector<const std::byte*> sources_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ORDER_NEGOTIATION_H_
