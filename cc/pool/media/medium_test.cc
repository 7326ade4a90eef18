// Sanitizers: address

#include "cc/pool/media/medium.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace jax_cxl::pool {
namespace {

TEST(MediumTest, IsFoundByItsName) {
  EXPECT_EQ(*ParseMedium("shm"), Medium::kShm);
  EXPECT_EQ(*ParseMedium("file"), Medium::kFile);
  EXPECT_EQ(*ParseMedium("dax"), Medium::kDax);
  for (const std::string name : {"", "Shm", "shm:", "memfd"}) {
    const Status status = ParseMedium(name).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name;
    EXPECT_NE(status.message().find("'" + name + "'"), std::string::npos)
        << status.message();
  }
}

TEST(MediumTest, PoolsHavePaths) {
  for (const Medium medium : {Medium::kShm, Medium::kFile, Medium::kDax}) {
    PoolSpec spec;
    spec.medium = medium;
    EXPECT_EQ(CheckSpec(spec).code(), Code::kInvalidArgument);
  }
  const PoolSpec files{.medium = Medium::kFile, .paths = {"/mnt/a", "/mnt/b"}};
  EXPECT_TRUE(CheckSpec(files).ok());
}

TEST(MediumTest, PoolsInShmHaveOneNameThatUrisAllow) {
  const auto check = [](std::vector<std::string> names) {
    return CheckSpec({.paths = std::move(names)});
  };
  EXPECT_TRUE(check({"a-job.0_"}).ok());
  EXPECT_TRUE(check({std::string(64, 'a')}).ok());
  for (const std::string& name :
       {std::string(), std::string("../a"), std::string("/mnt/a"),
        std::string("a b"), std::string("a\0b", 3), std::string(65, 'a')})
    EXPECT_EQ(check({name}).code(), Code::kInvalidArgument) << name;
  const Status two = check({"a", "b"});
  EXPECT_NE(two.message().find("one name of 1 to 64 letters"),
            std::string::npos)
      << two.message();
}

}  // namespace
}  // namespace jax_cxl::pool
