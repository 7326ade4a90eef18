#include "cc/pool/media/medium.h"

#include <gtest/gtest.h>

#include <string>

namespace jax_cxl::pool {
namespace {

TEST(MediumTest, IsFoundByItsName) {
  for (const Medium* medium : Medium::All()) {
    const auto found = Medium::Find(medium->name());
    ASSERT_TRUE(found.ok()) << medium->name();
    EXPECT_EQ(*found, medium);
  }
  EXPECT_EQ(*Medium::Find("dax"), &Medium::Dax());
}

TEST(MediumTest, RefusesOtherNames) {
  for (const std::string name : {"", "Shm", "shm:", "memfd"}) {
    const Status status = Medium::Find(name).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name;
    EXPECT_NE(status.message().find("'" + name + "'"), std::string::npos)
        << status.message();
  }
}

TEST(MediumTest, OnlyShmIsOfOneJob) {
  PoolSpec spec;
  spec.paths = {"job"};
  EXPECT_TRUE(CheckSpec(spec).ok());
  EXPECT_FALSE(spec.medium->shared());
  EXPECT_EQ(spec.medium->PathOf("job"), "/dev/shm/jax_cxl.job");
  spec.paths = {"/mnt/a", "/mnt/b"};
  EXPECT_EQ(CheckSpec(spec).code(), Code::kInvalidArgument);
  spec.medium = &Medium::File();
  EXPECT_TRUE(CheckSpec(spec).ok());
  EXPECT_TRUE(spec.medium->shared());
  EXPECT_EQ(spec.medium->PathOf("/mnt/a"), "/mnt/a");
}

TEST(MediumTest, OnlyFilesAreSplitIntoDevices) {
  PoolSpec spec;
  spec.paths = {"/dev/dax0.0", "/dev/dax1.0"};
  spec.medium = &Medium::File();
  spec.devices_per_path = 3;
  EXPECT_TRUE(CheckSpec(spec).ok());
  spec.medium = &Medium::Dax();
  EXPECT_EQ(CheckSpec(spec).code(), Code::kInvalidArgument);
  spec.devices_per_path = 1;
  EXPECT_TRUE(CheckSpec(spec).ok());
}

TEST(MediumTest, LinesOfDevicesAreWrittenBackForLaterJobs) {
  for (CoherenceMode mode : {CoherenceMode::kCoherent, CoherenceMode::kUncached,
                             CoherenceMode::kFlush})
    EXPECT_EQ(Medium::File().DurableMode(mode), mode);
  const Medium& dax = Medium::Dax();
  EXPECT_EQ(dax.DurableMode(CoherenceMode::kCoherent), CoherenceMode::kFlush);
  EXPECT_EQ(dax.DurableMode(CoherenceMode::kUncached),
            CoherenceMode::kUncached);
}

}  // namespace
}  // namespace jax_cxl::pool
