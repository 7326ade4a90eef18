// Sanitizers: address, thread

#include "cc/testing/soak/soak.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <limits>
#include <random>

#include "cc/testing/pool/random_test_length.h"

namespace jax_cxl::comm::soak {
namespace {

// To repeat a run: soak_benchmark --seed=S, where S is the seed printed here.
// It makes the same collectives, and then continues with more.
TEST(SoakTest, FreshSeed) {
  std::random_device device;
  const uint64_t seed = (uint64_t{device()} << 32) | device();
  std::cout << "seed " << seed << std::endl;
  const Report report =
      Soak(std::numeric_limits<uint64_t>::max(), seed, RandomTestSeconds());
  std::cout << report.calls << " collectives in " << report.worlds << " worlds"
            << std::endl;
  EXPECT_EQ(report.wrong, 0u) << report.first_failure;
  EXPECT_EQ(report.first_failure, "");
  EXPECT_GT(report.calls, 10u);
}

// Here the ranks' hosts are not coherent. To repeat a run: soak_benchmark
// --seed=S with JAX_CXL_TEST_POOL=incoherent and JAX_CXL_TEST_SEED=S, where S
// is the seed printed here.
TEST(SoakTest, FreshSeedOnIncoherentPools) {
  std::random_device device;
  const uint64_t seed = device();
  std::cout << "seed " << seed << std::endl;
  const Report report = Soak(std::numeric_limits<uint64_t>::max(), seed,
                             RandomTestSeconds(), Incoherence{seed, ""});
  std::cout << report.calls << " collectives in " << report.worlds << " worlds"
            << std::endl;
  EXPECT_EQ(report.wrong, 0u) << report.first_failure;
  EXPECT_EQ(report.first_failure, "");
  EXPECT_GT(report.calls, 10u);
}

TEST(SoakTest, SeesAWrongByte) {
  Random random(1);
  SoakCall call(random, {0, 1}, 1, 100);
  while (call.op() != plan::Op::kAllGather)
    call = SoakCall(random, {0, 1}, 1, 100);
  // No rank has run the call, so its outputs are wrong.
  EXPECT_GT(call.CountWrong(), 0u);
}

}  // namespace
}  // namespace jax_cxl::comm::soak
