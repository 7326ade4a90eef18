// Sanitizers: address, thread

#include "cc/pool/coherence/coherence.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cc/pool/coherence/cache.h"
#include "cc/pool/layout/layout.h"

namespace jax_cxl::pool {
namespace {

constexpr CoherenceMode kModes[] = {
    CoherenceMode::kCoherent, CoherenceMode::kUncached, CoherenceMode::kFlush};

TEST(CoherenceModeTest, NamesRoundTrip) {
  for (CoherenceMode mode : kModes) {
    auto parsed = ParseCoherenceMode(CoherenceModeName(mode));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, mode);
  }
}

TEST(CoherenceModeTest, UnknownNameIsAnError) {
  const auto parsed = ParseCoherenceMode("Flush");
  EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
  EXPECT_NE(parsed.status().message().find("coherent, uncached or flush"),
            std::string::npos);
}

TEST(CoherenceModeTest, SupportFollowsTheProcessor) {
  EXPECT_TRUE(CheckCoherenceSupported(CoherenceMode::kCoherent).ok());
  for (CoherenceMode mode : {CoherenceMode::kUncached, CoherenceMode::kFlush}) {
    const Status status = CheckCoherenceSupported(mode);
    EXPECT_EQ(status.code(),
              FlushSupported() ? Code::kOk : Code::kUnimplemented);
  }
}

// Every flush instruction of this processor leaves the data unchanged, even if
// the range starts or ends inside a cache line.
TEST(FlushTest, KeepsDataForAnyRange) {
  std::vector<unsigned char> data(1024);
  std::iota(data.begin(), data.end(), 0);
  const std::vector<unsigned char> before = data;
  for (FlushInstruction instruction :
       {FlushInstruction::kNone, FlushInstruction::kClflush,
        FlushInstruction::kClflushopt, FlushInstruction::kClwb}) {
    if (!HasInstruction(instruction)) continue;
    SCOPED_TRACE(static_cast<int>(instruction));
    for (size_t begin : {0, 1, 63, 64, 65}) {
      for (size_t bytes : {0, 1, 63, 64, 65, 200, 900}) {
        FlushLines(instruction, data.data() + begin, bytes);
        FullFence();
        ASSERT_EQ(data, before);
      }
    }
  }
  FlushLines(InvalidateInstruction(), nullptr, 0);
}

TEST(FlushTest, PrefersTheBetterInstruction) {
  if (HasInstruction(FlushInstruction::kClwb)) {
    EXPECT_EQ(WriteBackInstruction(), FlushInstruction::kClwb);
  }
  if (HasInstruction(FlushInstruction::kClflushopt)) {
    EXPECT_EQ(InvalidateInstruction(), FlushInstruction::kClflushopt);
  }
  EXPECT_NE(InvalidateInstruction(), FlushInstruction::kClwb);
  EXPECT_TRUE(HasInstruction(WriteBackInstruction()));
  EXPECT_TRUE(HasInstruction(InvalidateInstruction()));
}

class CoherenceTest : public testing::TestWithParam<CoherenceMode> {};

// A writer and a reader hand a payload back and forth through two flags.
TEST_P(CoherenceTest, HandsOverPayload) {
  const Status supported = CheckCoherenceSupported(GetParam());
  if (!supported.ok()) GTEST_SKIP() << supported.message();
  constexpr int kRounds = 300;
  constexpr size_t kWords = 1000;  // no whole number of cache lines
  struct Shared {
    Doorbell full;
    Doorbell taken;
    alignas(kInterferenceBytes) uint64_t payload[kWords];
  };
  auto shared = std::make_unique<Shared>();
  const Coherence coherence(GetParam());
  auto wait = [&](const uint64_t* flag, uint64_t value) {
    while (coherence.LoadFlag(flag) < value) std::this_thread::yield();
  };

  std::thread writer([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      wait(&shared->taken.word, round - 1);
      for (size_t i = 0; i < kWords; ++i) shared->payload[i] = round * i;
      coherence.PublishPayload(shared->payload, sizeof(shared->payload));
      coherence.StoreFlag(&shared->full.word, round);
    }
  });
  int wrong = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    wait(&shared->full.word, round);
    coherence.AcquirePayload(shared->payload, sizeof(shared->payload));
    for (size_t i = 0; i < kWords; ++i) {
      wrong += shared->payload[i] != round * i;
    }
    coherence.StoreFlag(&shared->taken.word, round);
  }
  writer.join();
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, CoherenceTest, testing::ValuesIn(kModes),
                         [](const auto& info) {
                           return std::string(CoherenceModeName(info.param));
                         });

}  // namespace
}  // namespace jax_cxl::pool
