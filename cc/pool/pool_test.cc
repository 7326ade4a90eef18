#include "cc/pool/pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/process_identity.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/open/shm.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

namespace fs = std::filesystem;

TEST(PoolTest, CreatorAndPeersSeeTheSameMemory) {
  PoolSpec spec = ShmSpec(UniqueName("same"), 12 * kMiB);
  spec.devices_per_path = 3;
  auto creator = Pool::Create(spec, 3);
  ASSERT_TRUE(creator.ok()) << creator.status().message();
  auto peer = Pool::Attach(spec, 3, (*creator)->token());
  ASSERT_TRUE(peer.ok()) << peer.status().message();

  Pool& a = **creator;
  Pool& b = **peer;
  EXPECT_NE(a.base(), b.base());
  EXPECT_EQ(a.token(), b.token());
  EXPECT_NE(a.token(), 0u);
  EXPECT_EQ(a.epoch(), 1u);
  EXPECT_EQ(b.epoch(), 1u);
  EXPECT_EQ(b.world_size(), 3);
  EXPECT_EQ(b.num_extents(), 3);
  EXPECT_EQ(b.total_bytes(), 12 * kMiB);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(a.rank_page(rank)->info.ready, 0u);
    a.rank_page(rank)->heartbeat.word = rank + 5;
    EXPECT_EQ(b.rank_page(rank)->heartbeat.word, rank + 5u);
    for (int e = 0; e < 3; ++e) {
      const Pool::Range arena = a.arena(e, rank);
      EXPECT_EQ(b.arena(e, rank).offset, arena.offset);
      std::memset(a.At(arena.offset, arena.bytes), rank * 3 + e, arena.bytes);
    }
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(b.rank_page(rank)->heartbeat.word, rank + 5u);
    for (int e = 0; e < 3; ++e) {
      const Pool::Range arena = b.arena(e, rank);
      const std::byte* at = b.At(arena.offset, arena.bytes);
      EXPECT_EQ(at[0], std::byte(rank * 3 + e));
      EXPECT_EQ(at[arena.bytes - 1], std::byte(rank * 3 + e));
    }
  }
}

TEST(PoolTest, AtRefusesHeadersAndTheOutside) {
  PoolSpec spec = ShmSpec(UniqueName("at"), 8 * kMiB);
  spec.devices_per_path = 2;
  auto pool = Pool::Create(spec, 1);
  ASSERT_TRUE(pool.ok());
  const Pool& p = **pool;
  EXPECT_EQ(p.At(0, 1), nullptr);
  EXPECT_EQ(p.At(kPageBytes - 1, 1), nullptr);
  EXPECT_EQ(p.At(kPageBytes, 8), p.base() + kPageBytes);
  EXPECT_EQ(p.At(4 * kMiB - 1, 1), p.base() + 4 * kMiB - 1);
  EXPECT_EQ(p.At(4 * kMiB - 1, 2), nullptr);  // the second extent's header
  EXPECT_EQ(p.At(4 * kMiB + kPageBytes - 1, 2), nullptr);
  EXPECT_EQ(p.At(8 * kMiB - 8, 8), p.base() + 8 * kMiB - 8);
  EXPECT_EQ(p.At(8 * kMiB - 8, 9), nullptr);
  EXPECT_EQ(p.At(8 * kMiB, 0), p.base() + 8 * kMiB);
  EXPECT_EQ(p.At(8 * kMiB + 1, 0), nullptr);
  EXPECT_EQ(p.At(UINT64_MAX, 2), nullptr);
  EXPECT_EQ(p.At(kPageBytes, UINT64_MAX), nullptr);
}

TEST(PoolTest, EveryCoherenceModeOpens) {
  for (CoherenceMode mode : {CoherenceMode::kCoherent, CoherenceMode::kUncached,
                             CoherenceMode::kFlush}) {
    PoolSpec spec = ShmSpec(UniqueName("mode"));
    spec.coherence = mode;
    auto pool = Pool::Create(spec, 2);
    EXPECT_EQ(pool.ok(), CheckCoherenceSupported(mode).ok());
    if (!pool.ok()) continue;
    EXPECT_EQ((*pool)->coherence().mode(), mode);
    EXPECT_TRUE(Pool::Attach(spec, 2, (*pool)->token()).ok());
  }
}

TEST(PoolTest, ShmFileIsPrivateAndGoesWithUnlink) {
  const PoolSpec spec = ShmSpec(UniqueName("unlink"));
  const std::string path = ShmPath(spec.paths[0]);
  {
    auto pool = Pool::Create(spec, 2);
    ASSERT_TRUE(pool.ok());
    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_GE(info.st_blocks * 512, static_cast<blkcnt_t>(4 * kMiB));
    (*pool)->Unlink();
    EXPECT_FALSE(fs::exists(path));
    (*pool)->Unlink();
    (*pool)->rank_page(0)->heartbeat.word = 1;  // still mapped
    EXPECT_EQ(Pool::Attach(spec, 2, (*pool)->token()).status().code(),
              Code::kNotFound);
  }
  {
    auto pool = Pool::Create(spec, 2);
    ASSERT_TRUE(pool.ok());
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path)) << "the destructor unlinks too";
}

TEST(PoolTest, SizeZeroIsAutomatic) {
  const PoolSpec spec = ShmSpec(UniqueName("auto"), 0);
  auto pool = Pool::Create(spec, 1);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  EXPECT_EQ((*pool)->total_bytes(), AutomaticPathBytes(1, 1, 1));
  EXPECT_EQ((*pool)->spec().bytes, (*pool)->total_bytes());
  auto peer = Pool::Attach(spec, 1, (*pool)->token());
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  EXPECT_EQ((*peer)->total_bytes(), (*pool)->total_bytes());
}

TEST(PoolTest, SecondJobOnOneNameIsToldWhoHasIt) {
  for (bool unlinked : {false, true}) {
    const PoolSpec spec = ShmSpec(UniqueName("twice"));
    std::unique_ptr<Pool> held;
    Child child([&] {
      auto pool = Pool::Create(spec, 2);
      if (!pool.ok()) return false;
      held = *std::move(pool);
      if (unlinked) held->Unlink();
      return true;
    });
    ASSERT_TRUE(child.ready());
    EXPECT_EQ(CreateCode(spec, "process " + std::to_string(child.pid())),
              Code::kAlreadyExists);
    child.Kill();
    EXPECT_EQ(CreateCode(spec), Code::kOk) << "the name is free again";
  }
}

TEST(PoolTest, LeftoverOfDeadJobIsTakenOverWithTheNextEpoch) {
  const PoolSpec spec = ShmSpec(UniqueName("leftover"), 8 * kMiB);
  std::unique_ptr<Pool> held;
  Child child([&] {
    auto pool = Pool::Create(spec, 2);
    if (!pool.ok()) return false;
    held = *std::move(pool);
    held->rank_page(1)->info.ready = 77;
    return true;
  });
  ASSERT_TRUE(child.ready());
  child.Kill();
  ASSERT_TRUE(fs::exists(ShmPath(spec.paths[0])));
  PoolSpec smaller = spec;
  smaller.bytes = 4 * kMiB;
  auto pool = Pool::Create(smaller, 2);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  EXPECT_EQ((*pool)->epoch(), 2u);
  EXPECT_EQ(fs::file_size(ShmPath(spec.paths[0])), 4 * kMiB);
  EXPECT_EQ((*pool)->rank_page(1)->info.ready, 0u);
  (*pool)->Unlink();
  EXPECT_FALSE(fs::exists(ShmPath(spec.paths[0])));
}

TEST(PoolTest, SweepRemovesWhatNobodyUses) {
  const PoolSpec dead = ShmSpec(UniqueName("dead"));
  const PoolSpec alive = ShmSpec(UniqueName("alive"));
  std::unique_ptr<Pool> held;
  Child child([&] {
    auto pool = Pool::Create(dead, 2);
    if (!pool.ok()) return false;
    held = *std::move(pool);
    return true;
  });
  ASSERT_TRUE(child.ready());
  auto pool = Pool::Create(alive, 2);
  ASSERT_TRUE(pool.ok());
  // The sweep must not follow a symbolic link whose name matches `jax_cxl.*`.
  const std::string link = ShmPath(UniqueName("link"));
  ASSERT_EQ(symlink(ShmPath(dead.paths[0]).c_str(), link.c_str()), 0);

  SweepLeftovers();
  EXPECT_TRUE(fs::exists(ShmPath(dead.paths[0]))) << "its job lives";
  child.Kill();
  // Another process may be sweeping at the same time. It holds a lock on a file
  // until it has removed the file, so this process may have to try again.
  for (int i = 0; i < 1000 && fs::exists(ShmPath(dead.paths[0])); ++i) {
    SweepLeftovers();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(fs::exists(ShmPath(dead.paths[0])));
  EXPECT_TRUE(fs::exists(ShmPath(alive.paths[0])));
  EXPECT_TRUE(fs::is_symlink(link));
  unlink(link.c_str());
}

TEST(PoolTest, FullSharedMemoryIsAnErrorWithFigures) {
  struct statvfs info;
  ASSERT_EQ(statvfs("/dev/shm", &info), 0);
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  const uint64_t bytes = RoundUp(free, kMiB) + 1024 * kMiB;
  const PoolSpec spec = ShmSpec(UniqueName("full"), bytes);
  const auto pool = Pool::Create(spec, 2);
  EXPECT_EQ(pool.status().code(), Code::kResourceExhausted);
  EXPECT_NE(pool.status().message().find(std::to_string(bytes)),
            std::string::npos)
      << pool.status().message();
  EXPECT_NE(pool.status().message().find("are free"), std::string::npos);
  EXPECT_FALSE(fs::exists(ShmPath(spec.paths[0])));
}

// The limit on the size of files makes the kernel fail in the middle of the
// reservation.
TEST(PoolTest, FailedReservationLeavesFilesAsTheyWere) {
  const TempDirectory dir;
  const std::string existing = dir / "existing";
  WriteFile(existing, std::string(kPageBytes, '\0'));
  EXPECT_TRUE(PassesInChild([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {kMiB, kMiB};
    setrlimit(RLIMIT_FSIZE, &limit);
    const PoolSpec shm = ShmSpec(UniqueName("limit"));
    return CreateCode(FileSpec({existing})) == Code::kResourceExhausted &&
           CreateCode(FileSpec({dir / "new"})) == Code::kResourceExhausted &&
           CreateCode(shm) == Code::kResourceExhausted &&
           !fs::exists(ShmPath(shm.paths[0]));
  }));
  EXPECT_EQ(fs::file_size(existing), kPageBytes);
  EXPECT_FALSE(fs::exists(dir / "new"));
}

TEST(PoolTest, FileIsCreatedAndRemoved) {
  const TempDirectory dir;
  const PoolSpec spec = FileSpec({dir / "a", dir / "b"});
  auto pool = Pool::Create(spec, 2);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  EXPECT_EQ((*pool)->num_extents(), 2);
  EXPECT_EQ((*pool)->total_bytes(), 8 * kMiB);
  EXPECT_TRUE(Pool::Attach(spec, 2, (*pool)->token()).ok());
  (*pool)->Unlink();
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(PoolTest, ExistingFileIsReusedInPlaceAndKept) {
  const TempDirectory dir;
  const std::string path = dir / "pool";
  WriteFile(path, "");
  PoolSpec spec = FileSpec({path});
  spec.offset = 3 * FilePageBytes();
  uint64_t token = 0;
  for (uint64_t epoch : {1, 2, 3}) {
    auto pool = Pool::Create(spec, 2);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    EXPECT_EQ((*pool)->epoch(), epoch);
    EXPECT_NE((*pool)->token(), token);
    token = (*pool)->token();
    EXPECT_EQ((*pool)->rank_page(1)->abort.raised, 0u);
    // Leave old data for the next job.
    std::memset((*pool)->base() + kPageBytes, 0xff, 4 * kMiB - kPageBytes);
    (*pool)->Unlink();
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_EQ(fs::file_size(path), spec.offset + spec.bytes);
  // Without a size, a pool takes the whole file from its offset on.
  spec.bytes = 0;
  auto pool = Pool::Create(spec, 2);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  EXPECT_EQ((*pool)->total_bytes(), 4 * kMiB);
}

TEST(PoolTest, EpochWrapsAndIsNeverZero) {
  const TempDirectory dir;
  const std::string path = dir / "pool";
  PoolHeader header =
      MakeHeader(2, {{0, 4 * kMiB}}, 4 * kMiB, /*epoch=*/65535, /*token=*/9);
  WriteFile(path,
            std::string(reinterpret_cast<char*>(&header), sizeof(header)));
  auto pool = Pool::Create(FileSpec({path}), 2);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  EXPECT_EQ((*pool)->epoch(), 1u);
}

TEST(PoolTest, FileInUseNamesTheProcess) {
  const TempDirectory dir;
  const PoolSpec spec = FileSpec({dir / "pool"});
  std::unique_ptr<Pool> held;
  Child child([&] {
    auto pool = Pool::Create(spec, 2);
    if (!pool.ok()) return false;
    held = *std::move(pool);
    return true;
  });
  ASSERT_TRUE(child.ready());
  EXPECT_EQ(CreateCode(spec, std::to_string(child.pid())),
            Code::kAlreadyExists);
  child.Kill();
  EXPECT_EQ(CreateCode(spec), Code::kOk);
}

// In another pid namespace, the kernel does not show who holds a lock. The
// error then names the keeper in the pool's header page.
TEST(PoolTest, FileInUseElsewhereNamesItsKeeper) {
  const auto in_container = [](const std::function<bool()>& body) {
    return PassesInChild([&] {
      return unshare(CLONE_NEWPID | CLONE_NEWNS) == 0 &&
             mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
             PassesInChild([&] {
               return mount("proc", "/proc", "proc", 0, nullptr) == 0 && body();
             });
    });
  };
  if (!in_container([] { return true; }))
    GTEST_SKIP() << "this process may not make a pid namespace";
  const TempDirectory dir;
  PoolSpec spec = FileSpec({dir / "pool"});
  spec.offset = FilePageBytes();
  const auto pool = Pool::Create(spec, 2);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  const std::string keeper = std::to_string(getpid());
  EXPECT_TRUE(in_container([&] {
    return CreateCode(spec, "in use by another job, of process " + keeper +
                                " on host ") == Code::kAlreadyExists &&
           !testing::Test::HasFailure();
  }));
}

// A job is alive as long as any of its processes is alive, even if its creator
// has ended.
TEST(PoolTest, PeerKeepsTheFileInUse) {
  const TempDirectory dir;
  WriteFile(dir / "pool", "");
  const PoolSpec spec = FileSpec({dir / "pool"});
  auto creator = Pool::Create(spec, 2);
  ASSERT_TRUE(creator.ok());
  auto peer = Pool::Attach(spec, 2, (*creator)->token());
  ASSERT_TRUE(peer.ok());
  std::unique_ptr<Pool>(*std::move(creator)).reset();
  EXPECT_EQ(CreateCode(spec), Code::kAlreadyExists);
  std::unique_ptr<Pool>(*std::move(peer)).reset();
  EXPECT_EQ(CreateCode(spec), Code::kOk);
}

TEST(PoolTest, ForkedChildDoesNotUnlink) {
  const PoolSpec spec = ShmSpec(UniqueName("fork"));
  auto pool = Pool::Create(spec, 2);
  ASSERT_TRUE(pool.ok());
  EXPECT_TRUE(PassesInChild([&] {
    (*pool)->Unlink();
    return true;
  }));
  EXPECT_TRUE(fs::exists(ShmPath(spec.paths[0])));
}

TEST(PoolTest, StartsAtTheOffset) {
  PoolSpec spec = ShmSpec(UniqueName("offset"), 4 * kMiB);
  spec.offset = 5 * FilePageBytes();
  auto pool = Pool::Create(spec, 2);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  std::memset((*pool)->base() + kPageBytes, 0xa5, 4 * kMiB - kPageBytes);
  EXPECT_EQ(fs::file_size(ShmPath(spec.paths[0])), spec.offset + spec.bytes);
  // The mapping starts at the offset in the spec.
  PoolHeader header;
  std::ifstream file(ShmPath(spec.paths[0]), std::ios::binary);
  file.seekg(spec.offset);
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  EXPECT_EQ(header.token, (*pool)->token());
}

}  // namespace
}  // namespace jax_cxl::pool
