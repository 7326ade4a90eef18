#include "cc/ffi/call/program_sites.h"

#include <gtest/gtest.h>

namespace jax_cxl::ffi {
namespace {

TEST(ProgramSitesTest, NumbersStartOverWithEachLoad) {
  ProgramSites sites;
  for (int load = 0; load < 3; ++load) {
    for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(sites.Next("jit_f"), i);
    sites.Complete("jit_f", 1, 2);
  }
  // A load that fails is not completed.
  EXPECT_EQ(sites.Next("jit_f"), 0u);
  sites.Begin("jit_f");
  EXPECT_EQ(sites.Next("jit_f"), 0u);
}

TEST(ProgramSitesTest, SitesOfALoadShareTheirProgram) {
  ProgramSites sites;
  EXPECT_FALSE(sites.HasSites("jit_f"));
  const auto program = sites.Loading("jit_f", 0);
  EXPECT_TRUE(sites.HasSites("jit_f"));
  EXPECT_EQ(sites.Loading("jit_f", 0), program);
  EXPECT_NE(sites.Loading("jit_g", 0), program);
  EXPECT_FALSE(program->complete);
  sites.NoteNumberedLine("jit_f", 3, "a.py:3 (f)");
  sites.Complete("jit_f", 5, 6);
  EXPECT_TRUE(program->complete);
  EXPECT_EQ(program->hash, 5u);
  EXPECT_EQ(program->run_ids_from, 6u);
  EXPECT_EQ(program->lines.at(3), "a.py:3 (f)");
  EXPECT_FALSE(sites.HasSites("jit_f"));
  EXPECT_NE(sites.Loading("jit_f", 0), program);
}

TEST(ProgramSitesTest, ProgramsAreApart) {
  ProgramSites sites;
  EXPECT_EQ(sites.Next("jit_f"), 0u);
  EXPECT_EQ(sites.Next("jit_g"), 0u);
  EXPECT_EQ(sites.Next("jit_f"), 1u);
  // Completing jit_g does not affect the numbers of jit_f, which is still being
  // loaded.
  sites.Complete("jit_g", 1, 2);
  sites.Complete("jit_h", 1, 2);
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
