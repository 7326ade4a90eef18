#ifndef JAX_CXL_COMM_CONNECT_TAKING_BACK_H_
#define JAX_CXL_COMM_CONNECT_TAKING_BACK_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/pool/coherence/doorbell.h"

namespace jax_cxl::comm {

// By this protocol the members of a group of GPUs agree, without waiting for
// each other, that one of them takes its memory back. Kernels have the
// addresses of all members' memory. So no call may be on its way to a device at
// that time, and later calls need new addresses.
//
// Before a host enqueues a call, it announces the call, and then checks whether
// a member is taking its memory. A member that wants to take its memory
// publishes this, and then checks that all members have finished the same calls
// and have announced no others. If one host announces a call while another host
// takes its memory, at least one of the two sees what the other is doing
// (docs/decisions/0026-memory-of-groups.md).
//
// One thread at a time may call Announce and TryTake, and another thread the
// other functions.
class TakingBack {
 public:
  struct Member {
    cuda::HostWords* words = nullptr;
    // In its directory, the member has an entry for its memory. `entry` points
    // to the version of that entry, and `version` is the value that was read
    // there. `entry` is null for this member.
    const uint64_t* entry = nullptr;
    uint64_t version = 0;
  };

  TakingBack(const pool::Doorbells& doorbells, std::vector<Member> members,
             int self);

  // Announces that this host enqueues calls up to number `calls`. Returns false
  // if a member has taken its memory. In that case all calls have finished, and
  // the group needs new memory.
  bool Announce(uint64_t calls);

  // Publishes how many calls this host knows to be finished.
  void TellFinished(uint64_t calls);

  // Tries to take this member's memory. Its host has finished `calls` calls and
  // announced no others. `ended` returns whether the process of a member has
  // ended. Returns true if no member uses the memory now or later. The caller
  // then closes its directory entry before it writes to the memory.
  bool TryTake(uint64_t calls, const std::function<bool(int)>& ended);

  // Returns true once a member has taken its memory. That happens only after
  // all members have finished all calls.
  bool taken() const;

 private:
  bool Taken(const Member& member) const {
    return member.entry != nullptr &&
           doorbells_.Read(member.entry) != member.version;
  }
  bool AllHaveFinished(uint64_t calls,
                       const std::function<bool(int)>& ended) const;

  pool::Doorbells doorbells_;
  std::vector<Member> members_;
  int self_;
  uint64_t tries_ = 0;  // twice the number
  uint64_t told_ = 0;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_TAKING_BACK_H_
