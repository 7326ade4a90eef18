#include <gtest/gtest.h>

#include "cc/ffi/errors/errors.h"

namespace jax_cxl::ffi {
namespace {

TEST(FailuresTest, FoundInWhatXlaMakesOfTheText) {
  Failures failures;
  const std::string text =
      failures.Record(Error(Code::kPeerLost, "rank 1 is gone").With("rank", 1));
  failures.Record(Error(Code::kMismatch, "another"));
  const auto found =
      failures.Find("UNAVAILABLE: " + text + " [type.googleapis");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->code(), Code::kPeerLost);
  EXPECT_EQ(found->message(), "rank 1 is gone");
  EXPECT_EQ(found->details(), (Details{{"rank", "1"}}));
}

TEST(FailuresTest, ErrorsOfOthersAreNotFound) {
  Failures failures;
  EXPECT_FALSE(failures.Find(""));
  failures.Record(Error(Code::kPeerLost, "rank 1 is gone"));
  EXPECT_FALSE(failures.Find("RESOURCE_EXHAUSTED: Out of memory"));
  EXPECT_FALSE(failures.Find("jax_cxl: PEER_LOST: rank 2 is gone"));
}

TEST(FailuresTest, TheNewestOfEqualTextsCounts) {
  Failures failures;
  const Status status = Error(Code::kPeerLost, "rank 1 is gone");
  const std::string text = failures.Record(Status(status).With("pid", 1));
  failures.Record(Error(Code::kMismatch, "in between"));
  failures.Record(Status(status).With("pid", 2));
  EXPECT_EQ(failures.Find(text)->details(), (Details{{"pid", "2"}}));
}

}  // namespace
}  // namespace jax_cxl::ffi
