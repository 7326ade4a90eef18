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

TEST(TuningTest, ReadsTheTableOfAFile) {
  const Result<Tuning> read = ParseTuning(
      R"({"emulated": true,
          "tuning": {"num_slots": 6, "nccl_chunk_bytes": 4096},
          "measured": [{"num_slots": 8}]})");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->num_slots, 6);
  EXPECT_EQ(read->nccl_chunk_bytes, 4096);
  EXPECT_EQ(read->slot_bytes, Tuning().slot_bytes);
  EXPECT_TRUE(ParseTuning(R"({"tuning": {}})").ok());
}

TEST(TuningTest, RefusesWhatIsNoTable) {
  for (const char* text :
       {"", "{}", R"({"tuning": 3})", R"({"tuning": {"num_slots": 6)",
        R"({"tuning": {"num_slots" 6}})", R"({"tuning": {"num_slots": "6"}})",
        R"({"tuning": {"slots": 6}})", R"({"tuning": {"num_slots": 1}})",
        R"({"tuning": {"num_slots": -6}})"})
    EXPECT_EQ(ParseTuning(text).status().code(), Code::kInvalidArgument)
        << text;
}

TEST(TuningTest, SaysThatAnotherVersionWroteTheTable) {
  const std::string message =
      ParseTuning(R"({"tuning": {"num_slots": 6, "gpu_levels_bytes": 1}})")
          .status()
          .message();
  for (const char* part :
       {"another version of jax_cxl", "'gpu_levels_bytes'", "run `python"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

}  // namespace
}  // namespace jax_cxl::comm
