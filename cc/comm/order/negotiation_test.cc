#include "cc/comm/order/negotiation.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace jax_cxl::comm {
namespace {

// The members of a group, in plain memory.
class NegotiatingMembers {
 public:
  explicit NegotiatingMembers(int size) {
    const uint64_t bytes = pool::ControlBytes(size, kPayloadBytes);
    const pool::Doorbells doorbells(
        pool::Coherence(pool::CoherenceMode::kCoherent), /*epoch=*/1);
    Group group;
    for (int member = 0; member < size; ++member) {
      group.members.push_back(member);
      memory_.emplace_back(bytes / sizeof(Line));
      blocks_.push_back({.control = reinterpret_cast<pool::ControlBlock*>(
                             memory_.back().data()),
                         .doorbells = doorbells});
    }
    for (int member = 0; member < size; ++member) {
      group.self = member;
      negotiations_.push_back(std::make_unique<Negotiation>(
          blocks_, group, kPayloadBytes, &traffic_));
    }
  }

  Negotiation& operator[](int member) { return *negotiations_[member]; }

  // Starts the barriers with identities `first` to `last`. Barriers are eager.
  void Start(int member, uint64_t first, uint64_t last) {
    for (uint64_t identity = first; identity <= last; ++identity) {
      auto call = std::make_unique<Call>();
      call->identity = identity;
      call->request.op = plan::Op::kBarrier;
      call->request.num_ranks = static_cast<int>(negotiations_.size());
      call->request.rank = member;
      auto call_plan = plan_cache_.Find(*call);
      ASSERT_TRUE(call_plan.ok()) << call_plan.status().message();
      ASSERT_TRUE((*call_plan)->eager);
      (*this)[member].Submit({std::move(call), *call_plan});
    }
  }

  // Returns how many calls ExchangeSubmissions finishes.
  size_t ExchangeSubmissions(int member) {
    std::vector<Finished> finished;
    EXPECT_TRUE((*this)[member].ExchangeSubmissions(&finished).ok());
    return finished.size();
  }

 private:
  static constexpr uint64_t kPayloadBytes = 512;
  struct alignas(pool::kInterferenceBytes) Line {
    std::byte bytes[pool::kInterferenceBytes] = {};
  };

  std::vector<std::vector<Line>> memory_;
  std::vector<MemberBlock> blocks_;
  cpu::Traffic traffic_;
  std::vector<std::unique_ptr<Negotiation>> negotiations_;
  PlanCache plan_cache_{plan::Geometry(), kPayloadBytes};
};

// The model of the protocol (cc/testing/models) found this case and the next
// one. In both, a member that is ahead dies before it has read submissions. The
// other members then cannot send the submissions that they expect from each
// other.
TEST(NegotiationTest, LeaderWaitsForWhoHoldsItsRing) {
  NegotiatingMembers members(2);
  members.Start(1, 1, pool::kCallRing + 1);
  members.ExchangeSubmissions(1);
  members.ExchangeSubmissions(0);
  members.ExchangeSubmissions(1);  // writes the last one, then dies
  members.Start(0, 1, pool::kCallRing + 1);
  EXPECT_EQ(members.ExchangeSubmissions(0), pool::kCallRing);
  EXPECT_EQ(members[0].pending(), 1u);
  EXPECT_EQ(members[0].WaitingFor(), std::vector<int>{1});
}

TEST(NegotiationTest, RingIsHeldBesideTheCallWaitedFor) {
  NegotiatingMembers members(3);
  members.Start(1, 1, pool::kCallRing);
  members.ExchangeSubmissions(1);  // then it dies
  members.Start(0, 1, pool::kCallRing + 1);
  members.ExchangeSubmissions(0);
  // Member 2 has not started the first call, and member 1 has read nothing.
  EXPECT_EQ(members[0].WaitingFor(), (std::vector<int>{2, 1}));
}

}  // namespace
}  // namespace jax_cxl::comm
