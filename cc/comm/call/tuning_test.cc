#include "cc/comm/call/tuning.h"

#include <gtest/gtest.h>

#include <string>

namespace jax_cxl::comm {
namespace {

TEST(TuningTest, BuiltInTableIsRight) {
  EXPECT_TRUE(CheckTuning(Tuning()).ok());
}

TEST(TuningTest, NamesWhatIsOutOfRange) {
  auto expect_wrong = [](const Tuning& tuning, const std::string& name) {
    const Status status = CheckTuning(tuning);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(name), std::string::npos)
        << status.message();
  };
  expect_wrong({.slot_bytes = 4000}, "slot_bytes is 4000");
  expect_wrong({.slot_bytes = 4096 + 64}, "multiple of 128");
  expect_wrong({.num_slots = 1}, "num_slots is 1");
  expect_wrong({.num_slots = 13}, "num_slots is 13");
  expect_wrong({.inline_bytes = 0}, "inline_bytes is 0");
  expect_wrong({.inline_bytes = 1 << 20}, "inline_bytes");
}

}  // namespace
}  // namespace jax_cxl::comm
