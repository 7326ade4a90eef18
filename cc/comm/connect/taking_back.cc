#include "cc/comm/connect/taking_back.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "cc/comm/call/backoff.h"

namespace jax_cxl::comm {

TakingBack::TakingBack(const pool::Doorbells& doorbells,
                       std::vector<Member> members, int self)
    : doorbells_(doorbells), members_(std::move(members)), self_(self) {}

bool TakingBack::Announce(uint64_t calls) {
  doorbells_.Ring(&members_[self_].words->wanted.word, calls);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Backoff backoff;
  for (const Member& member : members_) {
    if (member.entry == nullptr) continue;
    while (doorbells_.Read(&member.words->taking.word) % 2 != 0 &&
           !Taken(member))
      backoff.Pause();
    // By now the member's memory, including the word `taking` that was read
    // above, may belong to another group. In that case the member's entry
    // changed first, so Taken returns true.
    if (Taken(member)) return false;
  }
  return true;
}

void TakingBack::TellFinished(uint64_t calls) {
  if (std::exchange(told_, calls) != calls)
    doorbells_.Ring(&members_[self_].words->finished.word, calls);
}

bool TakingBack::TryTake(uint64_t calls,
                         const std::function<bool(int)>& ended) {
  if (taken()) return true;  // All have finished, and nobody announces a call.
  // Before the first call, other members may not have found this member's
  // memory yet. So it cannot be taken back.
  if (calls == 0 || !AllHaveFinished(calls, ended)) return false;
  uint64_t* taking = &members_[self_].words->taking.word;
  doorbells_.Ring(taking, tries_ + 1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (AllHaveFinished(calls, ended) || taken()) return true;
  doorbells_.Ring(taking, tries_ += 2);
  return false;
}

bool TakingBack::AllHaveFinished(uint64_t calls,
                                 const std::function<bool(int)>& ended) const {
  for (int member = 0; member < static_cast<int>(members_.size()); ++member) {
    if (member == self_ || ended(member)) continue;
    const cuda::HostWords& words = *members_[member].words;
    // A member that is not connected yet cannot announce its calls, so its word
    // `wanted` may lack them. But such a member has not finished these calls
    // either, so its word `finished` differs from `calls`.
    if (doorbells_.Read(&words.finished.word) != calls ||
        doorbells_.Read(&words.wanted.word) > calls)
      return false;
  }
  return true;
}

bool TakingBack::taken() const {
  return std::ranges::any_of(
      members_, [this](const Member& member) { return Taken(member); });
}

}  // namespace jax_cxl::comm
