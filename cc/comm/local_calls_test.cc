// Sanitizers: address, thread

#include "cc/comm/local_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "cc/comm/completions.h"

namespace jax_cxl::comm {
namespace {

using plan::Op;

const std::vector<int32_t> kMembers = {4, 7, 5};
constexpr uint64_t kLong = 40'000;  // elements for which parts get threads

// One member's buffers and outcome in one call.
struct Member {
  std::vector<int32_t> input, output;
  std::promise<Status> outcome;
};

std::unique_ptr<Call> MakeCall(Op op, uint64_t identity, int place,
                               uint64_t count, Member* member) {
  auto call = std::make_unique<Call>();
  call->identity = identity;
  call->request.op = op;
  call->request.num_ranks = static_cast<int>(kMembers.size());
  call->request.rank = place;
  call->request.count = count;
  call->request.element_bytes = 4;
  call->request.root = 2;
  call->dtype = DType::kInt32;
  call->name = "test";
  member->input.resize(plan::InputBytes(call->request) / 4);
  std::iota(member->input.begin(), member->input.end(), 1'000'000 * place);
  member->output.assign(plan::OutputBytes(call->request) / 4, -1);
  call->input = reinterpret_cast<const std::byte*>(member->input.data());
  call->output = reinterpret_cast<std::byte*>(member->output.data());
  call->done = [member](const Status& status) {
    member->outcome.set_value(status);
  };
  return call;
}

class LocalCallsTest : public testing::Test {
 protected:
  std::unique_ptr<LocalCalls> Make(double timeout_s = 300) {
    Options options;
    options.timeout_s = timeout_s;
    return std::make_unique<LocalCalls>(
        &completions_,
        [this] {
          return failed_ ? Error(Code::kPeerLost, "rank 9 died") : OkStatus();
        },
        options);
  }
  void Start(LocalCalls* local, std::unique_ptr<Call> call, Member* member) {
    if (std::optional<Status> status = local->Start(kMembers, std::move(call)))
      member->outcome.set_value(*status);
  }

  Completions completions_;
  std::atomic<bool> failed_ = false;
};

int32_t Expected(Op op, size_t place, size_t i, uint64_t count) {
  const auto number = static_cast<int32_t>(i % count);
  const auto block = static_cast<int32_t>(i / count);
  const auto own = static_cast<int32_t>(place * count);
  switch (op) {
    case Op::kReduceScatter:
      return 3 * (own + number) + 3'000'000;
    case Op::kAllGather:
      return 1'000'000 * block + number;
    case Op::kAllToAll:
      return 1'000'000 * block + own + number;
    default:  // scatter from the last member
      return 2'000'000 + own + number;
  }
}

// Members start independent calls in different orders, at the same time.
TEST_F(LocalCallsTest, ResultsAreRightInAnyOrder) {
  auto local = Make();
  const std::vector<Op> ops = {Op::kReduceScatter, Op::kAllGather,
                               Op::kAllToAll, Op::kScatter};
  constexpr int kCalls = 24;
  std::vector<std::vector<Member>> members(kMembers.size());
  for (auto& of_member : members) of_member = std::vector<Member>(kCalls);
  auto count_of = [](int k) { return k % 3 == 0 ? kLong + k : 1 + 7 * k; };
  std::vector<std::thread> threads;
  for (size_t place = 0; place < kMembers.size(); ++place)
    threads.emplace_back([&, place] {
      std::vector<int> order(kCalls);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(place));
      for (int k : order) {
        Member* member = &members[place][k];
        Start(local.get(),
              MakeCall(ops[k % 4], k, static_cast<int>(place), count_of(k),
                       member),
              member);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t place = 0; place < kMembers.size(); ++place)
    for (int k = 0; k < kCalls; ++k) {
      Member& member = members[place][k];
      ASSERT_TRUE(member.outcome.get_future().get().ok());
      for (size_t i = 0; i < member.output.size(); ++i)
        ASSERT_EQ(member.output[i], Expected(ops[k % 4], place, i, count_of(k)))
            << "call " << k << " place " << place << " element " << i;
    }
}

TEST_F(LocalCallsTest, AFailureOfTheJobEndsCallsThatWait) {
  auto local = Make();
  Member member;
  Start(local.get(), MakeCall(Op::kAllGather, 1, 0, 3, &member), &member);
  auto outcome = member.outcome.get_future();
  EXPECT_EQ(outcome.wait_for(std::chrono::milliseconds(200)),
            std::future_status::timeout);
  failed_ = true;
  EXPECT_EQ(outcome.get().message(), "rank 9 died");
}

TEST_F(LocalCallsTest, AMemberThatDoesNotComeIsNamed) {
  auto local = Make(/*timeout_s=*/0.1);
  Member first, last;
  Start(local.get(), MakeCall(Op::kAllGather, 1, 0, 3, &first), &first);
  Start(local.get(), MakeCall(Op::kAllGather, 1, 2, 3, &last), &last);
  const Status status = first.outcome.get_future().get();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 7 of this process did not start"),
            std::string::npos)
      << status.message();
  EXPECT_EQ(last.outcome.get_future().get().code(), Code::kDeadlineExceeded);
}

TEST_F(LocalCallsTest, TheEndFailsCallsThatWait) {
  auto local = Make();
  Member member;
  Start(local.get(), MakeCall(Op::kAllToAll, 1, 1, 3, &member), &member);
  local.reset();
  EXPECT_EQ(member.outcome.get_future().get().code(),
            Code::kFailedPrecondition);
}

TEST_F(LocalCallsTest, RefusesWhatNeedsThePool) {
  auto local = Make();
  Member member;
  auto call = MakeCall(Op::kScan, 1, 0, 3, &member);
  const auto status = local->Start(kMembers, std::move(call));
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace jax_cxl::comm
