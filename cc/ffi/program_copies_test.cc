#include "cc/ffi/program_copies.h"

#include <gtest/gtest.h>

namespace jax_cxl::ffi {
namespace {

TEST(ProgramCopiesTest, NumbersStartOverWithEachLoad) {
  ProgramCopies copies;
  for (int load = 0; load < 3; ++load) {
    for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(copies.Next("jit_f", 7), i);
    EXPECT_EQ(copies.Next("jit_f", 8), 0u);
    copies.Complete("jit_f");
  }
}

TEST(ProgramCopiesTest, ProgramsAreApart) {
  ProgramCopies copies;
  EXPECT_EQ(copies.Next("jit_f", 7), 0u);
  EXPECT_EQ(copies.Next("jit_g", 7), 0u);
  EXPECT_EQ(copies.Next("jit_f", 7), 1u);
  // Says nothing of a program that is being loaded at the same time.
  copies.Complete("jit_g");
  copies.Complete("jit_h");
  EXPECT_EQ(copies.Next("jit_f", 7), 2u);
  EXPECT_EQ(copies.Next("jit_g", 7), 0u);
}

}  // namespace
}  // namespace jax_cxl::ffi
