// Sanitizers: address

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "cc/nccl/calls/reductions.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl/levels/offer.h"
#include "cc/nccl/levels/places.h"
#include "cc/nccl/levels/steps.h"

namespace jax_cxl::nccl {
namespace {

using HostOf = std::vector<int>;

TEST(PlacesTest, ConsecutiveRanks) {
  const std::optional<Places> places = PlacesOf(HostOf{0, 0, 0, 1, 1, 1}, 4);
  ASSERT_TRUE(places.has_value());
  EXPECT_EQ(places->hosts, 2);
  EXPECT_EQ(places->per_host, 3);
  EXPECT_EQ(places->host, 1);
  EXPECT_EQ(places->place, 1);
  EXPECT_EQ(RanksOfPlace(*places), (std::vector<int32_t>{1, 4}));
}

TEST(PlacesTest, NoLevels) {
  for (const HostOf& hosts :
       {HostOf{0}, HostOf{0, 1, 2}, HostOf{0, 0}, HostOf{0, 0, 1},
        HostOf{0, 1, 1}, HostOf{0, 1, 0, 1}, HostOf{0, 0, 1, 2}})
    EXPECT_FALSE(PlacesOf(hosts, 0).has_value());
}

TEST(LevelsOfferTest, SettingsDiffer) {
  std::vector<LevelsOffer> ranks(3);
  EXPECT_TRUE(CheckSettings(ranks).ok());
  ranks[2].least_bytes = kNoLevels;
  const std::string message = CheckSettings(ranks).message();
  EXPECT_NE(message.find("is 0 on rank 0, and never on rank 2"),
            std::string::npos)
      << message;
}

TEST(LevelsOfferTest, TheFirstProblemCounts) {
  std::vector<LevelsOffer> ranks(3);
  EXPECT_TRUE(ProblemOf(ranks).ok());
  ranks[1].SetProblem(Error(Code::kNotFound, std::string(1000, 'x')));
  ranks[2].SetProblem(Error(Code::kNotFound, "y"));
  const std::string message = ProblemOf(ranks).message();
  EXPECT_TRUE(message.starts_with("rank 1: xxx")) << message;
}

TEST(LevelStepsTest, WhatRunsInLevels) {
  const Levels levels = {{2, 2, 0, 0}, /*least_bytes=*/1024, nullptr, 4096};
  Reductions reductions;
  const float factor = 2;
  const int premultiplied = *reductions.Add(&factor, 7, kScalarHostImmediate);
  const auto runs = [&](Operation operation) {
    std::byte buffer[1];
    operation.input = operation.output = buffer;
    const Result<Collective> collective =
        MakeCollective(operation, 0, 4, reductions);
    return RunsInLevels(operation, collective->call.request, levels);
  };
  EXPECT_TRUE(runs({Verb::kAllReduce, nullptr, nullptr, 256, 7, kSum}));
  EXPECT_FALSE(runs({Verb::kAllReduce, nullptr, nullptr, 255, 7, kSum}));
  EXPECT_TRUE(runs({Verb::kAllGather, nullptr, nullptr, 64, 7}));
  EXPECT_TRUE(runs({Verb::kReduceScatter, nullptr, nullptr, 64, 7, kAvg}));
  EXPECT_FALSE(runs({Verb::kReduce, nullptr, nullptr, 4096, 7, kSum}));
  EXPECT_FALSE(runs({Verb::kAllToAll, nullptr, nullptr, 4096, 7}));
  EXPECT_FALSE(
      runs({Verb::kAllReduce, nullptr, nullptr, 4096, 7, premultiplied}));
  // Levels move 8-bit floats, but do not reduce them.
  EXPECT_TRUE(runs({Verb::kBroadcast, nullptr, nullptr, 4096, 11}));
  EXPECT_FALSE(runs({Verb::kAllReduce, nullptr, nullptr, 4096, 11, kSum}));
}

}  // namespace
}  // namespace jax_cxl::nccl
