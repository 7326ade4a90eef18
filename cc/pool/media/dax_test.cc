#include "cc/pool/media/dax.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/process_identity.h"
#include "cc/pool/coherence/cache.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/pool.h"
#include "cc/testing/pool/fake_dax.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

namespace fs = std::filesystem;

class DaxTest : public testing::Test {
 protected:
  Status CreateStatus(const PoolSpec& spec) {
    return Pool::Create(spec, 2).status();
  }
  void ExpectRefused(const PoolSpec& spec, const std::string& word) {
    const Status status = CreateStatus(spec);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(word), std::string::npos)
        << status.message();
  }

  FakeDax machine_;
};

TEST_F(DaxTest, TakesWholeDevicesOfDifferentSizes) {
  const std::string a = machine_.Add("dax0.0", 8 * kMiB, "2097152");
  const std::string b = machine_.Add("dax1.0", 4 * kMiB, "2097152");
  const PoolSpec spec = machine_.Spec({a, b});
  auto creator = Pool::Create(spec, 2);
  ASSERT_TRUE(creator.ok()) << creator.status().message();
  EXPECT_EQ((*creator)->total_bytes(), 12 * kMiB);
  EXPECT_EQ((*creator)->num_extents(), 2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*creator)->base()) % (2 * kMiB), 0u);
  auto peer = Pool::Attach(spec, 2, (*creator)->token());
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const Pool::Range arena = (*peer)->arena(1, 1);
  EXPECT_GE(arena.offset, 8 * kMiB);
  std::memset((*peer)->At(arena.offset, arena.bytes), 7, arena.bytes);
  EXPECT_EQ((*creator)->At(arena.offset, 1)[0], std::byte{7});
}

TEST_F(DaxTest, ClearsControlPagesOfDirtyDevices) {
  const std::string path = machine_.Add("dax0.0", 8 * kMiB, "2097152");
  PoolSpec spec = machine_.Spec({path});
  spec.offset = 2 * kMiB;
  for (uint64_t epoch : {1, 2, 3}) {
    auto pool = Pool::Create(spec, 2);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    EXPECT_EQ((*pool)->epoch(), epoch);
    EXPECT_EQ((*pool)->total_bytes(), 6 * kMiB);
    const RankPage zero = {};
    for (int rank : {0, 1}) {
      EXPECT_EQ(std::memcmp((*pool)->rank_page(rank), &zero, sizeof(zero)), 0);
    }
    // Leave old data for the next job everywhere but in the header.
    std::memset((*pool)->base() + kPageBytes, 0xdd, 4 * kMiB);
    (*pool)->Unlink();
    EXPECT_TRUE(fs::exists(path)) << "devices are never removed";
  }
  char first = 0;
  std::ifstream(path).get(first);
  EXPECT_EQ(first, '\xee') << "what lies before the offset is not ours";
}

TEST_F(DaxTest, OneJobAtATime) {
  const PoolSpec spec =
      machine_.Spec({machine_.Add("dax0.0", 8 * kMiB, "2097152")});
  std::unique_ptr<Pool> held;
  Child child([&] {
    auto pool = Pool::Create(spec, 2);
    if (!pool.ok()) return false;
    held = *std::move(pool);
    return true;
  });
  ASSERT_TRUE(child.ready());
  const Status status = CreateStatus(spec);
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_NE(status.message().find(std::to_string(child.pid())),
            std::string::npos)
      << status.message();
}

// The kernel does not name the holder of a lock on a part of a device. The
// error message then names the keeper in the pool's header page.
TEST_F(DaxTest, DeviceInUseElsewhereNamesItsKeeper) {
  const PoolSpec spec =
      machine_.Spec({machine_.Add("dax0.0", 8 * kMiB, "2097152")});
  auto pool = Pool::Create(spec, 2);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  auto expect = [&](const std::string& process) {
    const std::string message = CreateStatus(spec).message();
    EXPECT_NE(message.find("in use by another job, of " + process + ";"),
              std::string::npos)
        << message;
  };
  expect(DescribeProcess(ThisProcess()));
  auto* page = reinterpret_cast<HeaderPage*>((*pool)->base());
  page->keeper.process.pid_namespace = 1;  // a process in another container
  page->keeper.process.pid = 4711;
  auto& host = page->keeper.process.host;
  std::memset(host, 'h', sizeof(host));  // without the terminating zero
  expect("process 4711 on host " + std::string(sizeof(host), 'h'));
}

TEST_F(DaxTest, JobsSideBySideOnOneDevice) {
  const std::string path = machine_.Add("dax0.0", 16 * kMiB, "2097152");
  PoolSpec first = machine_.Spec({path});
  first.bytes = 6 * kMiB;
  PoolSpec second = first;
  second.offset = 6 * kMiB;
  auto a = Pool::Create(first, 2);
  auto b = Pool::Create(second, 2);
  ASSERT_TRUE(a.ok()) << a.status().message();
  ASSERT_TRUE(b.ok()) << b.status().message();
  EXPECT_TRUE(Pool::Attach(first, 2, (*a)->token()).ok());
  EXPECT_TRUE(Pool::Attach(second, 2, (*b)->token()).ok());
  std::memset((*b)->base() + kPageBytes, 0xbb, 6 * kMiB - kPageBytes);
  EXPECT_TRUE((*a)->CheckIntact().ok());
  EXPECT_TRUE((*b)->CheckIntact().ok());
}

// A job that is alive is found by its lock if it runs on this kernel, and by
// its heartbeat if it runs on another kernel.
TEST_F(DaxTest, PartsThatOverlapAreRefused) {
  const std::string path = machine_.Add("dax0.0", 16 * kMiB, "2097152");
  PoolSpec spec = machine_.Spec({path});
  spec.offset = 4 * kMiB;
  spec.bytes = 6 * kMiB;
  auto living = Pool::Create(spec, 2);
  ASSERT_TRUE(living.ok()) << living.status().message();
  auto expect_refused = [&](const std::string& word) {
    for (uint64_t offset : {2, 6, 8}) {
      PoolSpec other = spec;
      other.offset = offset * kMiB;
      const Status status = CreateStatus(other);
      EXPECT_EQ(status.code(), Code::kAlreadyExists) << offset;
      EXPECT_NE(status.message().find(word), std::string::npos)
          << status.message();
    }
  };
  expect_refused("process " + std::to_string(getpid()));

  struct flock unlocked = {};
  unlocked.l_type = F_UNLCK;
  ASSERT_EQ(fcntl((*living)->fd(), F_OFD_SETLK, &unlocked), 0);
  auto& keeper = reinterpret_cast<HeaderPage*>((*living)->base())->keeper;
  std::strcpy(keeper.process.boot_id, "00000001-0000-4000-8000-000000000000");
  std::strcpy(keeper.process.host, "elsewhere");
  expect_refused("on host elsewhere");
  EXPECT_TRUE((*living)->CheckIntact().ok());
  PoolSpec beside = spec;
  beside.offset = 10 * kMiB;
  EXPECT_TRUE(CreateStatus(beside).ok());
}

// A job that takes over memory clears the headers of dead jobs in it, so that
// later jobs do not look for these dead jobs again.
TEST_F(DaxTest, HeadersOfDeadJobsAreCleared) {
  const std::string path = machine_.Add("dax0.0", 16 * kMiB, "2097152");
  PoolSpec spec = machine_.Spec({path});
  spec.bytes = 4 * kMiB;
  spec.offset = 8 * kMiB;
  spec.dead_after_s = 0.3;
  {
    auto dead = Pool::Create(spec, 2);
    ASSERT_TRUE(dead.ok());
    auto& keeper = reinterpret_cast<HeaderPage*>((*dead)->base())->keeper;
    std::strcpy(keeper.process.boot_id, "00000001-0000-4000-8000-000000000000");
    keeper.claim = 1;  // so that its destructor does not release it
  }
  PoolSpec whole = spec;
  whole.offset = 0;
  whole.bytes = 0;
  EXPECT_TRUE(CreateStatus(whole).ok());
  std::ifstream file(path, std::ios::binary);
  file.seekg(8 * kMiB);
  char magic = 1;
  file.get(magic);
  EXPECT_EQ(magic, 0);
}

TEST_F(DaxTest, OffsetAndSizeFollowTheAlignment) {
  const std::string path = machine_.Add("dax0.0", 8 * kMiB, "2097152");
  PoolSpec spec = machine_.Spec({path});
  spec.offset = kPageBytes;
  ExpectRefused(spec, "multiples of the alignment");
  spec.offset = 0;
  spec.bytes = 3 * kMiB;
  ExpectRefused(spec, "multiples of the alignment");
  spec.bytes = 10 * kMiB;
  ExpectRefused(spec, "exceed");
  spec.bytes = 8 * kMiB;
  spec.offset = 2 * kMiB;
  ExpectRefused(spec, "exceed");
  spec.bytes = 0;
  spec.offset = 8 * kMiB;
  ExpectRefused(spec, "nothing left");
  spec.offset = uint64_t{1} << 50;
  ExpectRefused(spec, "exceed");
}

TEST_F(DaxTest, SmallerAlignmentCannotComeBeforeALargerOne) {
  const std::string small = machine_.Add("dax0.0", 6 * kMiB, "2097152");
  const std::string large = machine_.Add("dax1.0", 8 * kMiB, "4194304");
  ExpectRefused(machine_.Spec({small, large}), "largest alignment");
  EXPECT_TRUE(CreateStatus(machine_.Spec({large, small})).ok());
}

TEST_F(DaxTest, FindsTheDeviceByNameToo) {
  const std::string path = machine_.Add("dax3.1", 8 * kMiB, "2097152");
  machine_.Forget(path);
  ExpectRefused(machine_.Spec({path}), "not a dax device");
  machine_.Describe("bus/dax/devices/dax3.1", 8 * kMiB, "2097152");
  EXPECT_TRUE(CreateStatus(machine_.Spec({path})).ok());
}

TEST_F(DaxTest, OldKernelsDoNotStateTheAlignment) {
  const std::string path = machine_.Add("dax0.0", 8 * kMiB, "");
  ExpectRefused(machine_.Spec({path}),
                "alignment (the file `align` exists from Linux 5.10 on");
}

TEST_F(DaxTest, NonsenseInSysfsIsAnError) {
  for (const char* align : {"0", "3000000", "512", "-1", "two"}) {
    SCOPED_TRACE(align);
    const std::string path = machine_.Add("dax0.0", 8 * kMiB, align);
    EXPECT_EQ(CreateStatus(machine_.Spec({path})).code(),
              Code::kInvalidArgument);
  }
}

TEST(DaxMachineTest, FilesAndOtherDevicesAreNoDaxDevices) {
  const TempDirectory dir;
  std::ofstream(dir / "file") << "text";
  auto pool = Pool::Create(DaxSpec({dir / "file"}), 2);
  EXPECT_EQ(pool.status().code(), Code::kInvalidArgument);
  EXPECT_NE(pool.status().message().find("file:"), std::string::npos);
  pool = Pool::Create(DaxSpec({"/dev/null"}), 2);
  EXPECT_EQ(pool.status().code(), Code::kInvalidArgument);
  pool = Pool::Create(DaxSpec({dir / "dax0.0"}), 2);
  EXPECT_EQ(pool.status().code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(dir / "dax0.0"));
}

}  // namespace
}  // namespace jax_cxl::pool
