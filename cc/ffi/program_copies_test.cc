#include "cc/ffi/program_copies.h"

#include <gtest/gtest.h>

namespace jax_cxl::ffi {
namespace {

TEST(ProgramCopiesTest, NumbersStartOverWithEachLoad) {
  ProgramCopies copies;
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(copies.Next(1, 7), i);
  EXPECT_EQ(copies.Next(1, 8), 0u);
  copies.Complete(1);
  for (int load = 0; load < 3; ++load) {
    for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(copies.Next(1, 7), i);
    EXPECT_EQ(copies.Next(1, 8), 0u);
    copies.Complete(1);
  }
}

TEST(ProgramCopiesTest, ProgramsAreApart) {
  ProgramCopies copies;
  EXPECT_EQ(copies.Next(1, 7), 0u);
  EXPECT_EQ(copies.Next(2, 7), 0u);
  EXPECT_EQ(copies.Next(1, 7), 1u);
  // Says nothing of a program that is being loaded at the same time.
  copies.Complete(2);
  copies.Complete(3);
  EXPECT_EQ(copies.Next(1, 7), 2u);
  EXPECT_EQ(copies.Next(2, 7), 0u);
}

}  // namespace
}  // namespace jax_cxl::ffi
