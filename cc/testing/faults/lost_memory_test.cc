// Sanitizers: address, thread

// The pool's file is cut short under a running job. Calls must return errors,
// and no process may get SIGBUS.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

namespace fs = std::filesystem;

// Returns a path through which this process can change an unlinked file that it
// has open. The former name of the file contains `part_of_name`.
std::string OpenFile(const std::string& part_of_name) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error);
    if (target.find(part_of_name) != std::string::npos) return entry.path();
  }
  return "";
}

// All ranks sum `count` numbers. Returns the first error.
Status Sum(World& world, uint64_t identity, uint64_t count,
           std::vector<std::vector<int32_t>>* sums) {
  const std::vector<int32_t> input(count, 1);
  sums->assign(world.size(), std::vector<int32_t>(count));
  std::vector<int32_t> members;
  for (int rank = 0; rank < world.size(); ++rank) members.push_back(rank);
  Countdown countdown(world.size());
  for (int rank = 0; rank < world.size(); ++rank) {
    auto call = std::make_unique<Call>();
    call->identity = identity;
    call->request.op = plan::Op::kAllReduce;
    call->request.num_ranks = world.size();
    call->request.rank = rank;
    call->request.count = count;
    call->request.element_bytes = sizeof(int32_t);
    call->dtype = DType::kInt32;
    call->input = reinterpret_cast<const std::byte*>(input.data());
    call->output = reinterpret_cast<std::byte*>((*sums)[rank].data());
    call->name = "psum";
    countdown.StartCall(world.endpoint(rank), members, std::move(call));
  }
  return countdown.Wait();
}

// The parameter is the size to which the file is cut: 0, or a size that keeps
// the ranks' pages and the start of rank 0's arena.
class LostMemoryTest : public testing::TestWithParam<uint64_t> {};

TEST_P(LostMemoryTest, EveryCallEndsWithTheCause) {
  if (Incoherence::FromEnvironment())
    GTEST_SKIP() << "the emulated cache would take lost memory for a store of "
                    "another host";
  World world(3, Options(), 24 << 20);
  std::vector<std::vector<int32_t>> sums;
  const Status before = Sum(world, 1, 100'000, &sums);
  ASSERT_TRUE(before.ok()) << before.message();
  EXPECT_EQ(sums[2].back(), 3);

  const std::string file =
      OpenFile("jax_cxl.test." + std::to_string(getpid()) + ".3");
  ASSERT_NE(file, "");
  fs::resize_file(file, GetParam());
  for (uint64_t identity : {2, 3}) {
    const Status after = Sum(world, identity, 100'000, &sums);
    EXPECT_EQ(after.code(), Code::kDataLoss);
    EXPECT_NE(after.message().find("SIGBUS"), std::string::npos)
        << after.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LostMemoryTest, testing::Values(0, 512 << 10));

}  // namespace
}  // namespace jax_cxl::comm
