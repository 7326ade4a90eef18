#include "cc/ffi/call/program_sites.h"

#include <gtest/gtest.h>

namespace jax_cxl::ffi {
namespace {

TEST(ProgramSitesTest, NumbersStartOverWithEachLoad) {
  ProgramSites sites;
  for (int load = 0; load < 3; ++load) {
    for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(sites.Next("jit_f"), i);
    sites.Complete("jit_f");
  }
}

TEST(ProgramSitesTest, ProgramsAreApart) {
  ProgramSites sites;
  EXPECT_EQ(sites.Next("jit_f"), 0u);
  EXPECT_EQ(sites.Next("jit_g"), 0u);
  EXPECT_EQ(sites.Next("jit_f"), 1u);
  // Completing jit_g does not affect the numbers of jit_f, which is still being
  // loaded.
  sites.Complete("jit_g");
  sites.Complete("jit_h");
  EXPECT_EQ(sites.Next("jit_f"), 2u);
  EXPECT_EQ(sites.Next("jit_g"), 0u);
}

TEST(ProgramSitesTest, ModulesMayShareAnInstance) {
  ProgramSites& own = ProgramSites::Get();
  ProgramSites other;
  other.NoteLine("jit_f", "psum 4", "a.py:3 (f)");
  ProgramSites::Use(&other);
  EXPECT_EQ(ProgramSites::Get().LinesOf("jit_f", "psum 4"), "a.py:3 (f)");
  ProgramSites::Use(&own);
  EXPECT_EQ(&ProgramSites::Get(), &own);
}

TEST(ProgramSitesTest, LinesOfEqualCallsAreAllNamed) {
  ProgramSites sites;
  sites.NoteLine("jit_f", "psum 4", "a.py:3 (f)");
  sites.NoteLine("jit_f", "psum 4", "a.py:5 (f)");
  sites.NoteLine("jit_f", "psum 4", "a.py:3 (f)");
  sites.NoteLine("jit_f", "psum 8", "a.py:7 (f)");
  sites.NoteLine("jit_g", "psum 4", "b.py:1 (g)");
  EXPECT_EQ(sites.LinesOf("jit_f", "psum 4"), "a.py:3 (f) or a.py:5 (f)");
  EXPECT_EQ(sites.LinesOf("jit_f", "psum 8"), "a.py:7 (f)");
  sites.ForgetLines("jit_f");
  EXPECT_EQ(sites.LinesOf("jit_f", "psum 4"), "");
  EXPECT_EQ(sites.LinesOf("jit_g", "psum 4"), "b.py:1 (g)");
}

}  // namespace
}  // namespace jax_cxl::ffi
