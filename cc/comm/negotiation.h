#ifndef JAX_CXL_COMM_NEGOTIATION_H_
#define JAX_CXL_COMM_NEGOTIATION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call.h"
#include "cc/pool/channel_layout.h"
#include "cc/pool/doorbell.h"

namespace jax_cxl::comm {

// Finds one order of calls for all members of a group.
//
// XLA starts independent calls in a different order on every rank, so the n-th
// call of one rank is not the n-th of another. Every member submits a call when
// it starts it; the first member, the leader, announces a call once all have
// submitted it, and everybody executes in the order of announcements. A call
// is thus executed only when every rank is inside it: it needs nothing but the
// other ranks' progress to finish, so the group's bounded slots cannot be held
// by a call that some rank has yet to start. (docs/decisions/0002)
//
// The leader compares descriptors: ranks that disagree about a call all get an
// error that names both versions, before any data is read.
//
// Not thread-safe.
class Negotiation {
 public:
  // `blocks[m]` is member m's control block.
  Negotiation(const pool::Doorbells& doorbells,
              std::vector<pool::ControlBlock*> blocks, const Group& group);

  // A call that this rank started.
  void Submit(std::unique_ptr<Call> call);

  // The next call of the group's order, or null while some member has not
  // started it. `released_calls` is how many calls every other member is known
  // to have left behind: their announcements may be overwritten. Errors:
  // kMismatch, kDataLoss.
  Result<std::unique_ptr<Call>> Next(uint64_t released_calls);

  // Calls submitted here that Next has not returned yet.
  size_t pending() const { return mine_.size(); }

  // Members that this rank's oldest pending call waits for, as far as known
  // here: a follower only knows that the leader has not announced it.
  std::vector<int> WaitingFor() const;
  // That call; null if none is pending.
  const Call* oldest() const;

  // Takes all pending calls out, to be failed.
  std::vector<std::unique_ptr<Call>> TakePending();

 private:
  // What the leader knows of a call that not all members have submitted.
  struct Roll {
    std::vector<std::optional<pool::CallDescriptor>> descriptors;
    std::vector<std::string> names;
    int present = 0;
  };

  bool leads() const { return group_.self == 0; }
  void FlushSubmissions();
  Status CollectSubmissions();
  Status Enroll(int member, uint64_t identity,
                const pool::CallDescriptor& descriptor, std::string name);
  Status Compare(uint64_t identity, const Roll& roll) const;
  Result<std::unique_ptr<Call>> Announce(uint64_t released_calls);
  Result<std::unique_ptr<Call>> Follow();
  std::unique_ptr<Call> Take(uint64_t identity);

  pool::Doorbells doorbells_;
  std::vector<pool::ControlBlock*> blocks_;
  Group group_;

  std::unordered_map<uint64_t, std::unique_ptr<Call>> mine_;
  std::deque<uint64_t> age_;        // identities in order of submission
  std::deque<const Call*> unsent_;  // followers: not yet in the ring
  uint64_t submissions_ = 0;        // followers: written to the ring
  uint64_t announcements_ = 0;      // announced (leader) or followed

  std::unordered_map<uint64_t, Roll> rolls_;  // leader
  std::deque<uint64_t> complete_;             // leader: all have submitted
  std::vector<uint64_t> collected_;           // leader: read from each member
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_NEGOTIATION_H_
