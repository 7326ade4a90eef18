#include "cc/nccl/facts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace jax_cxl::nccl {
namespace {

Facts FactsOf(int multiprocessors, uint8_t gpu) {
  Facts facts;
  facts.multiprocessors = multiprocessors;
  facts.gpu[15] = gpu;
  return facts;
}

TEST(FactsTest, TheSmallestGpuCounts) {
  const std::vector<Facts> ranks = {FactsOf(132, 1), FactsOf(58, 2),
                                    FactsOf(132, 3)};
  const Result<int> least = LeastMultiprocessors(ranks);
  ASSERT_TRUE(least.ok()) << least.status().message();
  EXPECT_EQ(*least, 58);
}

TEST(FactsTest, RanksWithOneGpuAreNamed) {
  const std::vector<Facts> ranks = {FactsOf(132, 1), FactsOf(132, 2),
                                    FactsOf(132, 1)};
  const Status status = LeastMultiprocessors(ranks).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("ranks 0 and 2 have the same GPU"),
            std::string::npos)
      << status.message();
}

// A rank with a problem may not know its GPU.
TEST(FactsTest, AProblemComesBeforeTheGpus) {
  std::vector<Facts> ranks = {FactsOf(132, 0), FactsOf(0, 0)};
  std::snprintf(ranks[1].problem, sizeof(ranks[1].problem), "no memory");
  const Status status = LeastMultiprocessors(ranks).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_NE(status.message().find("the GPU of rank 1 cannot use the pool: no "
                                  "memory"),
            std::string::npos)
      << status.message();
}

TEST(FactsTest, SettingsHaveToBeEqual) {
  for (int setting = 0; setting < 3; ++setting) {
    std::vector<Facts> ranks = {FactsOf(132, 1), FactsOf(132, 2)};
    if (setting == 0) ranks[1].rank_bytes = 1;
    if (setting == 1) ranks[1].coherence = 2;
    if (setting == 2) ranks[1].gpu_writes_memory = 1;
    const Status status = LeastMultiprocessors(ranks).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
  }
}

TEST(FactsTest, RanksThatCompareOtherCallsAreNamed) {
  std::vector<Facts> ranks = {FactsOf(132, 1), FactsOf(132, 2),
                              FactsOf(132, 3)};
  for (Facts& facts : ranks) facts.compare = 100;
  EXPECT_TRUE(LeastMultiprocessors(ranks).ok());
  ranks[2].compare = 0;
  const Status status = LeastMultiprocessors(ranks).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("JAX_CXL_NCCL_COMPARE is 100 on rank 0, but "
                                  "0 on rank 2"),
            std::string::npos)
      << status.message();
}

TEST(FactsTest, TheSlowerEndOfALinkCounts) {
  const std::string port = testing::TempDir() + "port", gpu = port + "/gpu";
  std::filesystem::create_directories(gpu);
  const auto write = [](const std::string& file, const char* text) {
    std::ofstream(file) << text << "\n";
  };
  EXPECT_EQ(LinkOf(gpu), kMeasuredLink);  // unknown
  write(gpu + "/max_link_speed", "32.0 GT/s PCIe");
  write(gpu + "/current_link_width", "16");
  EXPECT_EQ(LinkOf(gpu), kMeasuredLink);
  write(port + "/max_link_speed", "8.0 GT/s PCIe");
  EXPECT_EQ(LinkOf(gpu), kMeasuredLink / 4);
  write(gpu + "/current_link_width", "4");
  EXPECT_EQ(LinkOf(gpu), kMeasuredLink / 16);
  write(gpu + "/max_link_speed", "Unknown");
  EXPECT_EQ(LinkOf(gpu), kMeasuredLink);
  std::filesystem::remove_all(port);
}

}  // namespace
}  // namespace jax_cxl::nccl
