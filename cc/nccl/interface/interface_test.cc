// Sanitizers: address

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <map>
#include <string>

#include "cc/nccl/interface/abi.h"
#include "cc/nccl/interface/real_library.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl/interface/unique_id.h"

namespace jax_cxl::nccl {
namespace {

Settings Read(const std::map<std::string, std::string>& environment) {
  return ReadSettings([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? "" : found->second;
  });
}

TEST(SettingsTest, Defaults) {
  const Settings settings = Read({{"JAX_CXL_POOL", "dax:/dev/dax0.0"}});
  EXPECT_TRUE(settings.status.ok()) << settings.status.message();
  EXPECT_TRUE(settings.forwards_all());
  EXPECT_EQ(settings.hosts, Hosts::kMachines);
  EXPECT_FALSE(settings.warns);
}

TEST(SettingsTest, Reads) {
  const Settings settings = Read({{"JAX_CXL_NCCL_HOSTS", "processes"},
                                  {"JAX_CXL_TIMEOUT", "2.5"},
                                  {"JAX_CXL_NCCL_RANK_BYTES", "33554432"},
                                  {"JAX_CXL_NCCL_COMPARE", "100"},
                                  {"NCCL_DEBUG", "INFO"}});
  EXPECT_TRUE(settings.status.ok()) << settings.status.message();
  EXPECT_EQ(settings.compare, 100);
  EXPECT_EQ(settings.hosts, Hosts::kProcesses);
  EXPECT_EQ(settings.timeout_s, 2.5);
  EXPECT_EQ(settings.rank_bytes, 32 << 20);
  EXPECT_TRUE(settings.warns && settings.informs);
}

TEST(SettingsTest, Refuses) {
  EXPECT_FALSE(Read({{"JAX_CXL_NCCL_HOSTS", "host"}}).status.ok());
  for (const char* wrong : {"0", "-1", "5s", "nan", "inf"})
    EXPECT_FALSE(Read({{"JAX_CXL_TIMEOUT", wrong}}).status.ok()) << wrong;
  EXPECT_FALSE(Read({{"JAX_CXL_NCCL_RANK_BYTES", "1"}}).status.ok());
  for (const char* wrong : {"0", "64MiB"})
    EXPECT_FALSE(
        Read({{"JAX_CXL_NCCL_COMMUNICATOR_BYTES", wrong}}).status.ok());
  for (const char* wrong :
       {"0", "-1", "1.5", "1e2", " 1", "+1", "all", "18446744073709551616"})
    EXPECT_FALSE(Read({{"JAX_CXL_NCCL_COMPARE", wrong}}).status.ok()) << wrong;
  EXPECT_FALSE(Read({{"JAX_CXL_NCCL_POOL", "shm:a"}}).status.ok());
  // Between machines, the default of a file is not enough.
  EXPECT_FALSE(Read({{"JAX_CXL_NCCL_POOL", "file:/mnt/a"}}).status.ok());
  EXPECT_TRUE(Read({{"JAX_CXL_NCCL_POOL", "file:/mnt/a"},
                    {"JAX_CXL_NCCL_HOSTS", "processes"}})
                  .status.ok());
}

TEST(SharedMemoryTest, Reads) {
  const Settings settings =
      Read({{"JAX_CXL_NCCL_POOL",
             "dax:/dev/dax0.0?size=64GiB&offset=2 MiB&coherence=uncached"},
            {"JAX_CXL_NCCL_COMMUNICATOR_BYTES", "5e8"}});
  ASSERT_TRUE(settings.status.ok()) << settings.status.message();
  EXPECT_FALSE(settings.forwards_all());
  EXPECT_EQ(settings.communicator_bytes, 500'000'000);
  const pool::PoolSpec& spec = settings.shared_memory->spec;
  EXPECT_EQ(spec.medium, pool::Medium::kDax);
  EXPECT_EQ(spec.paths, std::vector<std::string>{"/dev/dax0.0"});
  EXPECT_EQ(spec.bytes, uint64_t{64} << 30);
  EXPECT_EQ(spec.offset, 2 << 20);
  EXPECT_EQ(spec.coherence, pool::CoherenceMode::kUncached);
  EXPECT_TRUE(settings.shared_memory->coherence_given);

  const Settings flush =
      Read({{"JAX_CXL_NCCL_POOL", "dax:/dev/dax0.0?gpu_writes=memory"}});
  ASSERT_TRUE(flush.status.ok()) << flush.status.message();
  EXPECT_EQ(flush.shared_memory->spec.coherence, pool::CoherenceMode::kFlush);
  EXPECT_TRUE(flush.shared_memory->gpu_writes_memory);

  const Settings file = Read({{"JAX_CXL_NCCL_POOL", "file:/mnt/pool"},
                              {"JAX_CXL_NCCL_HOSTS", "processes"}});
  ASSERT_TRUE(file.status.ok()) << file.status.message();
  EXPECT_EQ(file.shared_memory->spec.medium, pool::Medium::kFile);
  EXPECT_EQ(file.shared_memory->spec.coherence, pool::CoherenceMode::kCoherent);
  EXPECT_FALSE(file.shared_memory->coherence_given);
}

TEST(SharedMemoryTest, Refuses) {
  for (const char* wrong :
       {"dax:dev/dax0.0", "dax:/a?", "dax:/a?size",
        "dax:/a?size=", "dax:/a?size=1GB", "dax:/a?size=8EiB", "dax:/a?size=-1",
        "dax:/a?size=9999999TiB", "dax:/a?keep=on-failure",
        "dax:/a?size=1&size=1", "dax:/a?coherence=none",
        "dax:/a?coherence=coherent&gpu_writes=memory", "dax:/a?gpu_writes=1",
        "file:/a?size=1GiB", "file:/a?offset=4KiB", "nfs:/a",
        "dax:/a?devices=2"})
    EXPECT_EQ(Read({{"JAX_CXL_NCCL_POOL", wrong}}).status.code(),
              Code::kInvalidArgument)
        << wrong;
  for (const char* unsupported : {"dax:/a,/b", "file:/a?devices=2", "shm:"})
    EXPECT_EQ(Read({{"JAX_CXL_NCCL_POOL", unsupported}}).status.code(),
              Code::kUnimplemented)
        << unsupported;
}

TEST(UniqueIdTest, CarriesItsToken) {
  auto token = RandomPoolToken();
  ASSERT_TRUE(token.ok());
  token->bootstrap = {0x0100007f, 80};
  NcclUniqueId id = {};
  EXPECT_FALSE(TokenOf(id).has_value());
  PutToken(*token, &id);
  EXPECT_EQ(TokenOf(id), *token);
  EXPECT_NE(*RandomPoolToken(), *token);
}

TEST(UniqueIdTest, DerivedTokensDiffer) {
  const PoolToken parent = {3, 5};
  const std::vector<int> some = {0, 2}, others = {0, 1};
  const PoolToken derived = DeriveToken(parent, some, 0);
  EXPECT_EQ(derived, DeriveToken(parent, some, 0));
  EXPECT_NE(derived, DeriveToken(parent, others, 0));
  EXPECT_NE(derived, DeriveToken(parent, some, 1));
  EXPECT_NE(derived, DeriveToken({3, 7}, some, 0));
}

TEST(SplitTest, OrdersByKeyAndRank) {
  const std::vector<SplitChoice> choices = {
      {7, 2, {0, 1}}, {8, 0, {0, 2}}, {7, 1, {0, 3}},
      {7, 1, {0, 4}}, {-1, 0, {}},
  };
  const auto expect = [&](int rank, int new_rank, int size, uint64_t token) {
    const SplitPart part = PartOf(choices, rank);
    EXPECT_EQ(part.rank, new_rank);
    EXPECT_EQ(part.size, size);
    EXPECT_EQ(part.token.low, token);
  };
  expect(0, 2, 3, 3);
  expect(2, 0, 3, 3);
  expect(3, 1, 3, 3);
  expect(1, 0, 1, 2);
}

TEST(RealLibraryTest, SearchFolders) {
  using Folders = std::vector<std::string>;
  EXPECT_EQ(SearchFolders("$ORIGIN/../nvidia/nccl/lib:/opt/x:${ORIGIN}",
                          "/site/torch/lib/libtorch.so"),
            (Folders{"/site/torch/lib/../nvidia/nccl/lib", "/opt/x",
                     "/site/torch/lib"}));
  EXPECT_EQ(SearchFolders("", "a"), Folders());
}

TEST(ConfigTest, OutlivesTheProgramsOwn) {
  struct Longer {
    NcclConfig first = {sizeof(Longer), kConfigMagic, 22800, 0};
    int later = 7;
  } given;
  const Config config(&given.first);
  given = {{0, 0, 0, 1}, 0};
  EXPECT_FALSE(config.blocking());
  EXPECT_EQ(reinterpret_cast<const Longer*>(config.get())->later, 7);
}

TEST(ConfigTest, BlocksUnlessTheProgramSaysOtherwise) {
  EXPECT_TRUE(Config(nullptr).blocking());
  EXPECT_EQ(Config(nullptr).get(), nullptr);
  const NcclConfig undefined = {sizeof(NcclConfig), kConfigMagic, 22800,
                                std::numeric_limits<int>::min()};
  EXPECT_TRUE(Config(&undefined).blocking());
  const NcclConfig unknown = {size_t{1} << 40, 1, 2, 0};
  EXPECT_TRUE(Config(&unknown).blocking());
  EXPECT_EQ(Config(&unknown).get()->magic, 1);
}

TEST(ConfigTest, CanMakeACommunicatorBlock) {
  const NcclConfig nonblocking = {sizeof(NcclConfig), kConfigMagic, 22800, 0};
  Config config(&nonblocking);
  config.MakeBlocking();
  EXPECT_TRUE(config.blocking());
  EXPECT_EQ(config.get()->blocking, 1);
  const NcclConfig unknown = {size_t{1} << 40, 1, 2, 0};
  Config kept(&unknown);
  kept.MakeBlocking();
  EXPECT_EQ(kept.get()->blocking, 0);
  Config none(nullptr);
  none.MakeBlocking();
  EXPECT_EQ(none.get(), nullptr);
}

}  // namespace
}  // namespace jax_cxl::nccl
