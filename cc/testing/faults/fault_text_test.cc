#include <gtest/gtest.h>

#include <string>

#include "cc/testing/faults/fault.h"

namespace jax_cxl::fault {
namespace {

TEST(FaultTextTest, ParsesWhatItPrints) {
  for (const char* text :
       {"rank=1,call=3,point=ring,pass=2,action=kill",
        "rank=0,call=1,point=step,pass=1,action=delay,seconds=0.5",
        "rank=2,call=0,point=rung,pass=7,action=corrupt"}) {
    const Result<Fault> fault = Parse(text);
    ASSERT_TRUE(fault.ok()) << fault.status().message();
    EXPECT_EQ(Text(*fault), text);
  }
}

TEST(FaultTextTest, RefusesWhatItDoesNotUnderstand) {
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

}  // namespace
}  // namespace jax_cxl::fault
