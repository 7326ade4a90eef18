// Sanitizers: address, thread

#include "cc/comm/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/comm/endpoint.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

using Gathered = Result<std::vector<std::string>>;

Options Times() {
  Options options;
  options.warn_after_s = 60;
  options.timeout_s = 60;
  return options;
}

// A job in which each rank is a process, or in which some ranks are.
class Job {
 public:
  explicit Job(int size, std::vector<int32_t> members = {},
               const Options& options = Times())
      : world_(size, options), members_(std::move(members)) {
    if (members_.empty()) {
      members_.resize(size);
      std::iota(members_.begin(), members_.end(), 0);
    }
    for (int32_t rank : members_)
      exchanges_.push_back(
          OrDie(Exchange::Open(&world_.pool(rank), &world_.peers(rank),
                               &world_.endpoint(rank), members_, options)));
  }

  int size() const { return static_cast<int>(members_.size()); }
  World& world() { return world_; }
  Exchange& of(int process) { return *exchanges_[process]; }

  // Calls `run` for each process, in a thread of its own.
  void Run(const std::function<void(int)>& run) {
    std::vector<std::thread> threads;
    for (int process = 0; process < size(); ++process)
      threads.emplace_back(run, process);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  World world_;
  std::vector<int32_t> members_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
};

void ExpectError(const Gathered& found, Code code, const std::string& text) {
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), code);
  EXPECT_NE(found.status().message().find(text), std::string::npos)
      << found.status().message();
}

TEST(ExchangeTest, AllGetTheBytesOfAll) {
  Job job(3);
  job.Run([&](int process) {
    std::mt19937 random(7);
    for (int n = 0; n < 300; ++n) {
      const size_t bytes = random() % (n % 50 == 0 ? 1000000 : 300);
      const auto of = [&](int other) {
        return std::string(bytes + other, static_cast<char>('a' + n + other));
      };
      const Gathered found = job.of(process).AllGather(
          {.topic = "t", .what = "test", .bytes = of(process)});
      ASSERT_TRUE(found.ok()) << found.status().message();
      ASSERT_EQ(found->size(), 3);
      for (int other = 0; other < 3; ++other)
        ASSERT_EQ((*found)[other], of(other));
    }
  });
}

// The other message comes long before the large one has gone.
TEST(ExchangeTest, OneMessageIsLargerThanTheRing) {
  Job job(2);
  job.Run([&](int process) {
    const std::string large(5000000, 'x');
    const Gathered found = job.of(process).AllGather(
        {"t", "test", process == 0 ? std::string_view(large) : "small"});
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ((*found)[0], large);
    EXPECT_EQ((*found)[1], "small");
  });
}

TEST(ExchangeTest, OneProcessNeedsNoMemory) {
  Job job(2, {1});
  const Gathered found =
      job.of(0).AllGather({.topic = "t", .what = "test", .bytes = "mine"});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, std::vector<std::string>{"mine"});
}

TEST(ExchangeTest, TheMembersMayBeSomeRanks) {
  Job job(5, {0, 2, 3});
  job.Run([&](int process) {
    const Gathered found = job.of(process).AllGather(
        {.topic = "t", .what = "test", .bytes = std::to_string(process)});
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, (std::vector<std::string>{"0", "1", "2"}));
  });
}

// Threads make the exchanges of their own topics, in no common order.
TEST(ExchangeTest, TopicsNeedNoOrder) {
  Job job(2);
  job.Run([&](int process) {
    std::vector<std::thread> threads;
    for (int topic = 0; topic < 3; ++topic)
      threads.emplace_back([&, topic] {
        for (int n = 0; n < 200; ++n) {
          const std::string text = std::to_string(1000 * topic + n);
          const Gathered found = job.of(process).AllGather(
              {.topic = std::to_string(topic), .what = "test", .bytes = text});
          ASSERT_TRUE(found.ok()) << found.status().message();
          ASSERT_EQ(*found, std::vector<std::string>(2, text));
        }
      });
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(ExchangeTest, AfterATimeoutTheOthersGetTheBytes) {
  Job job(2);
  // The first exchange connects, and each rank is late once.
  for (int late = 0; late < 2; ++late) {
    const int other = 1 - late;
    const auto exchange = [&](int process, std::optional<double> timeout) {
      return job.of(process).AllGather(
          {.topic = "t",
           .what = "exchange " + std::to_string(late),
           .bytes = std::to_string(process)},
          timeout);
    };
    const Gathered first = exchange(other, 0.01);
    ExpectError(first, Code::kDeadlineExceeded, "did not arrive within 0.01 s");
    ExpectError(first, Code::kDeadlineExceeded,
                "exchange " + std::to_string(late) + ": rank " +
                    std::to_string(late) + " (pid ");
    if (late == 1)
      ExpectError(first, Code::kDeadlineExceeded, "; last at exchange 0)");
    const Gathered second = exchange(late, {});
    ASSERT_TRUE(second.ok()) << second.status().message();
    EXPECT_EQ(*second, (std::vector<std::string>{"0", "1"}));
  }
}

TEST(ExchangeTest, ATimeoutOfZeroOnlyGives) {
  Job job(2);
  job.Run([&](int process) {
    ASSERT_TRUE(job.of(process).AllGather({.topic = "t"}).ok());
  });
  const Gathered first =
      job.of(0).AllGather({.topic = "t", .bytes = std::string(10000, 'x')}, 0);
  ExpectError(first, Code::kDeadlineExceeded, "did not arrive within 0 s");
  const Gathered second = job.of(1).AllGather({.topic = "t"});
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ((*second)[0], std::string(10000, 'x'));
}

TEST(ExchangeTest, OtherPointsAreAnErrorOfBoth) {
  Job job(2);
  job.Run([&](int process) {
    const std::string what = "point " + std::to_string(process);
    const Gathered found = job.of(process).AllGather({"t", what, ""});
    ExpectError(found, Code::kMismatch, " at point 0");
    ExpectError(found, Code::kMismatch, " at point 1");
  });
}

// The two processes would wait for each other until the timeout.
TEST(ExchangeTest, OtherTopicsAreAStall) {
  Job job(2);
  std::vector<Status> found(2);
  job.Run([&](int process) {
    const std::string topic = "topic " + std::to_string(process);
    found[process] = job.of(process).AllGather({topic, topic, ""}).status();
  });
  for (const Status& status : found) {
    EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
    EXPECT_NE(status.message().find("topic 0"), std::string::npos);
    EXPECT_NE(status.message().find("topic 1"), std::string::npos);
  }
}

TEST(ExchangeTest, AnErrorOfAMemberEndsTheWait) {
  Job job(2);
  std::thread waits([&] {
    ExpectError(job.of(0).AllGather({"t", "test", ""}), Code::kDataLoss,
                "its memory is broken");
  });
  job.world().peers(1).GiveUp(1,
                              Error(Code::kDataLoss, "its memory is broken"));
  waits.join();
  // This rank has given up before. So errors of collectives do not count.
  job.Run([&](int process) {
    if (process == 1) job.of(1).AllGather({"u", "test", ""}, 0).status();
  });
  job.world().peers(0).GiveUp(0, Error(Code::kDataLoss, "so is this"));
  const Gathered after = job.of(0).AllGather({"u", "test", ""});
  EXPECT_TRUE(after.ok()) << after.status().message();
}

TEST(ExchangeTest, AMemberThatLeavesIsLost) {
  Job job(2);
  job.world().endpoint(1).Leave("", /*program_ends=*/true);
  ExpectError(job.of(0).AllGather({"t", "barrier 'x'", ""}), Code::kPeerLost,
              "barrier 'x': rank 1 (pid ");
}

TEST(ExchangeTest, AbortAndInterruption) {
  Job job(2);
  ExpectError(job.of(0).AllGather({"t", "test", ""}, {}, [] { return true; }),
              Code::kInternal, "test was interrupted");
  std::thread waits([&] {
    ExpectError(job.of(0).AllGather({"t", "test", ""}), Code::kPeerLost,
                "the reason");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  job.of(0).Abort(Error(Code::kPeerLost, "the reason"));
  waits.join();
  ExpectError(job.of(0).AllGather({"t", "test", ""}), Code::kPeerLost,
              "the reason");
}

TEST(ExchangeTest, AFullArenaIsAnError) {
  World world(2, Times());
  while (world.endpoint(0).arena()->Allocate(0, 4096).ok()) {
  }
  const auto exchange = Exchange::Open(&world.pool(0), &world.peers(0),
                                       &world.endpoint(0), {0, 1}, Times());
  EXPECT_EQ(exchange.status().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace jax_cxl::comm
