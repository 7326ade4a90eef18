#include "cc/base/fault.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace jax_cxl::fault {
namespace {

TEST(FaultTest, ParsesWhatItPrints) {
  for (const char* text :
       {"rank=1,call=3,point=ring,pass=2,action=kill",
        "rank=0,call=1,point=step,pass=1,action=delay,seconds=0.5",
        "rank=2,call=0,point=rung,pass=7,action=corrupt"}) {
    const Result<Fault> fault = Parse(text);
    ASSERT_TRUE(fault.ok()) << fault.status().message();
    EXPECT_EQ(Text(*fault), text);
  }
}

TEST(FaultTest, RefusesWhatItDoesNotUnderstand) {
  for (const char* text :
       {"", "rank=1", "rank=1,point=ring", "rank=1,point=nowhere,action=kill",
        "rank=1,point=ring,action=sing", "rank=-1,point=ring,action=kill",
        "rank=x,point=ring,action=kill", "rank=1,point=ring,action=kill,when=2",
        "rank=1,point=ring,action=kill,pass=0",
        "rank=1,point=step,action=corrupt"}) {
    const Status status = Parse(text).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
  }
}

class ArmedTest : public testing::Test {
 protected:
  void TearDown() override {
    Disarm();
    SetObserver(nullptr);
    happened = 0;
  }
  void Set(const std::string& text) {
    Arm(*Parse(text));
    SetObserver([](const Fault&) { ++happened; });
  }
  static inline int happened = 0;
};

TEST_F(ArmedTest, HappensOnceAtTheGivenPassOfTheGivenCall) {
  Set("rank=1,call=2,point=step,pass=3,action=delay");
  for (uint64_t call = 1; call <= 4; ++call) {
    Pass(Point::kSubmit, 1, call);
    for (int step = 1; step <= 5; ++step) {
      Pass(Point::kStep);
      EXPECT_EQ(happened, call > 2 || (call == 2 && step >= 3))
          << call << " " << step;
    }
  }
  EXPECT_EQ(Passes(Point::kStep), 15u);
  EXPECT_EQ(Passes(Point::kSubmit), 3u);
}

TEST_F(ArmedTest, OtherRanksPassUnharmed) {
  Set("rank=1,call=0,point=step,action=delay");
  Enter(0);
  Pass(Point::kStep);
  EXPECT_EQ(happened, 0);
  Enter(1);
  Pass(Point::kStep);
  EXPECT_EQ(happened, 1);
}

TEST_F(ArmedTest, CorruptsTheDoorbellOrWhatItAnnounces) {
  uint64_t line[16] = {7};
  Set("rank=1,call=0,point=ring,action=corrupt");
  Enter(1);
  Pass(Point::kRing, line);
  EXPECT_EQ(line[0], 7u);
  for (int i = 1; i <= 4; ++i) EXPECT_NE(line[i], 0u);
  EXPECT_EQ(line[5], 0u);
  Set("rank=1,call=0,point=rung,action=corrupt");
  Pass(Point::kRung, line);
  EXPECT_NE(line[0], 7u);
}

TEST(UnarmedTest, NothingHappens) {
  Pass(Point::kStep);
  EXPECT_EQ(Passes(Point::kStep), 0u);
}

}  // namespace
}  // namespace jax_cxl::fault
