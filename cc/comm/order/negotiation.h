#ifndef JAX_CXL_COMM_ORDER_NEGOTIATION_H_
#define JAX_CXL_COMM_ORDER_NEGOTIATION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/plan_cache.h"
#include "cc/comm/connect/directory.h"
#include "cc/comm/order/submissions.h"
#include "cc/engine/cpu/executor.h"
#include "cc/pool/layout/channel_layout.h"

namespace jax_cxl::comm {

// A call that this rank has started, and how it is executed.
struct StartedCall {
  std::unique_ptr<Call> call;
  std::shared_ptr<const CallPlan> call_plan;
};

// Matches the calls of all members of a group, in whatever order the members
// start them, and executes eager calls.
//
// XLA starts independent calls in a different order on every rank, so the n-th
// call of one rank is not the n-th of another. Every member submits a call when
// it starts it. For each call, every member keeps a *match*: which members have
// submitted the call. Members compare descriptors as submissions arrive. If
// ranks disagree about a call, all of them find an error that names both
// versions, before they read any data.
//
// The payload of an *eager* call travels in the submissions. Such a call
// finishes as soon as its match is complete. It takes no slot, so it needs no
// order. All other calls share the slots of the group, in one order. The first
// member, the leader, announces a call once its match is complete, and all
// members execute calls in the order of announcements. So a call is executed
// only when every rank has started it, and then waits only for the progress of
// the other ranks. No call holds slots while some rank has yet to start it.
// (docs/decisions/0002)
//
// Not thread-safe.
class Negotiation {
 public:
  // `blocks[m]` is the control block of member m. The vector must live as long
  // as this object. A submission carries at most `payload_bytes`. The payloads
  // are counted in `traffic`.
  Negotiation(const std::vector<MemberBlock>& blocks, const Group& group,
              uint64_t payload_bytes, cpu::Traffic* traffic);

  // See Submissions::Move. In addition, this member must have no pending call,
  // and all members must have followed all announcements.
  void Move() { submissions_.Move(); }
  uint64_t most() const {
    return std::max(submissions_.most(), announcements_);
  }

  void Submit(StartedCall started);

  // Sends submissions, reads the submissions of the others, and executes eager
  // calls, which it appends to `finished`. Returns true if anything made
  // progress. Errors: kMismatch, kDataLoss, kResourceExhausted.
  Result<bool> ExchangeSubmissions(std::vector<Finished>* finished);

  // Returns the next call in the group's order. Returns no call until this
  // member has read the submissions of that call from all members. Then the
  // member knows where every member's memory is (Connection::FollowMoves).
  // `released_calls` is the number of calls that every other member has
  // certainly passed. The announcements of these calls may be overwritten.
  // Fails with kDataLoss.
  Result<StartedCall> Next(uint64_t released_calls);

  // Number of calls submitted here that are neither finished nor returned by
  // Next.
  size_t pending() const { return pending_; }

  std::vector<int> WaitingFor() const;
  const Call* oldest() const;

  void EndLaunch(uint64_t program, uint32_t launch, const Status& status,
                 std::vector<Finished>* finished);

  void Fail(const Status& status, std::vector<Finished>* finished);

 private:
  // The state of a call that some member has submitted.
  struct Match {
    uint64_t identity = 0;
    StartedCall mine;            // no call: not started here yet
    bool lacks_payload = false;  // some submission came without a payload
    bool ended = false;          // EndLaunch has finished this rank's call
    int num_submitted = 0;
    // By member.
    std::vector<bool> submitted;
    std::vector<const std::byte*> payloads;
    std::vector<std::byte> kept;  // payloads that came before the last one
    // The call as member `first` has submitted it. The submissions of the other
    // members are compared with it.
    int first = 0;
    pool::CallDescriptor descriptor;
    uint32_t name = 0;
  };
  using Matches = std::vector<std::unique_ptr<Match>>;

  bool leads() const { return group_.self == 0; }
  int size() const { return static_cast<int>(blocks_.size()); }
  Match* Find(uint64_t identity) const;
  Match* Add(uint64_t identity);
  Status CheckMemory(int member) const;
  Match* OldestPending() const;

  Result<bool> SendSubmissions(std::vector<Finished>* finished);
  Result<bool> ReadSubmissions(std::vector<Finished>* finished);
  Status AddMember(Match* match, int member,
                   const pool::CallDescriptor& descriptor, uint32_t name);
  void KeepPayload(Match* match, int member, const Submissions::Entry& entry);
  Status OnComplete(Match* match, std::vector<Finished>* finished);
  Result<StartedCall> Announce(uint64_t released_calls);
  Result<StartedCall> Follow();
  // Ends the match of a call that every member has submitted, and returns this
  // rank's call.
  StartedCall Take(Match* match);

  const std::vector<MemberBlock>& blocks_;
  Group group_;
  uint64_t payload_bytes_;
  cpu::Traffic* traffic_;
  Submissions submissions_;

  Matches matches_;     // in the order of their first submission
  Matches spare_;       // for reuse
  size_t pending_ = 0;  // matches with a call of this rank
  std::deque<Match*> unsent_;
  std::deque<Match*> complete_;  // leader: not announced yet
  uint64_t announcements_ = 0;   // announced (leader) or followed
  std::vector<const std::byte*> sources_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ORDER_NEGOTIATION_H_
