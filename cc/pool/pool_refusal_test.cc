#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cc/pool/layout/header.h"
#include "cc/pool/open/shm.h"
#include "cc/pool/pool.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

namespace fs = std::filesystem;

TEST(PoolRefusalTest, FilesOfOthersAreLeftAlone) {
  const TempDirectory dir;
  const std::string text = "my thesis\n";
  WriteFile(dir / "foreign", text);
  EXPECT_EQ(CreateCode(FileSpec({dir / "foreign"}), "not a jax_cxl pool"),
            Code::kDataLoss);
  // A foreign file is refused wherever it is in the list of paths. A Create
  // that is refused leaves no new files.
  EXPECT_EQ(CreateCode(FileSpec({dir / "first", dir / "foreign"})),
            Code::kDataLoss);
  EXPECT_FALSE(fs::exists(dir / "first"));
  std::string contents;
  std::getline(std::ifstream(dir / "foreign"), contents);
  EXPECT_EQ(contents + "\n", text);
  EXPECT_EQ(fs::file_size(dir / "foreign"), text.size());

  const std::string shm = UniqueName("foreign");
  WriteFile(ShmPath(shm), text);
  EXPECT_EQ(CreateCode(ShmSpec(shm)), Code::kDataLoss);
  EXPECT_TRUE(fs::exists(ShmPath(shm)));
  unlink(ShmPath(shm).c_str());
}

TEST(PoolRefusalTest, OtherLayoutVersionIsRefused) {
  const TempDirectory dir;
  PoolHeader header = MakeHeader(2, {{0, 4 * kMiB}}, 4 * kMiB, 1, 1);
  for (uint32_t version : {kLayoutVersion - 1, kLayoutVersion + 1}) {
    header.layout_version = version;
    header.checksum = HeaderChecksum(header);
    WriteFile(dir / "old",
              std::string(reinterpret_cast<char*>(&header), sizeof(header)));
    EXPECT_EQ(CreateCode(FileSpec({dir / "old"}), "delete the file"),
              Code::kDataLoss);
  }
}

TEST(PoolRefusalTest, LinksDirectoriesAndPipesAreRefused) {
  const TempDirectory dir;
  ASSERT_EQ(symlink((dir / "target").c_str(), (dir / "link").c_str()), 0);
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(CreateCode(FileSpec({dir / "link"}), "symbolic links"),
            Code::kPermissionDenied);
  EXPECT_EQ(CreateCode(FileSpec({dir / "fifo"}), "regular file"),
            Code::kInvalidArgument);
  EXPECT_EQ(CreateCode(FileSpec({dir.path()})), Code::kInvalidArgument);
  EXPECT_EQ(CreateCode(FileSpec({"/dev/null"}), "dax:"),
            Code::kInvalidArgument);
  EXPECT_EQ(CreateCode(FileSpec({dir / "no/such"}), "no/such"),
            Code::kNotFound);
  EXPECT_FALSE(fs::exists(dir / "target"));

  const std::string shm = UniqueName("link");
  ASSERT_EQ(symlink((dir / "target").c_str(), ShmPath(shm).c_str()), 0);
  EXPECT_EQ(CreateCode(ShmSpec(shm)), Code::kPermissionDenied);
  unlink(ShmPath(shm).c_str());
}

TEST(PoolRefusalTest, FilesOthersCanWriteAreRefused) {
  const TempDirectory dir;
  for (int mode : {0620, 0602, 0666, 0640, 0604}) {
    WriteFile(dir / "open", "");
    fs::permissions(dir / "open", fs::perms(mode));
    EXPECT_EQ(CreateCode(FileSpec({dir / "open"}), "chmod 600"),
              Code::kPermissionDenied);
  }
  WriteFile(dir / "open", "a novel");
  fs::permissions(dir / "open", fs::perms(0644));
  EXPECT_EQ(CreateCode(FileSpec({dir / "open"}),
                       "holds data that are not a pool; name another path"),
            Code::kPermissionDenied);
}

TEST(PoolRefusalTest, FilesOfOtherUsersAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const TempDirectory dir;
  WriteFile(dir / "theirs", "");
  ASSERT_EQ(chown((dir / "theirs").c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(CreateCode(FileSpec({dir / "theirs"}), "belongs to user"),
            Code::kPermissionDenied);
}

TEST(PoolRefusalTest, MissingPermissionIsAnError) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  const TempDirectory dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  const PoolSpec shm = ShmSpec(UniqueName("permission"));
  auto pool = Pool::Create(shm, 2);
  ASSERT_TRUE(pool.ok());
  const uint64_t token = (*pool)->token();
  WriteFile(dir / "mine", "");
  EXPECT_TRUE(PassesInChild([&] {
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) return false;
    return CreateCode(FileSpec({dir / "new"})) == Code::kPermissionDenied &&
           CreateCode(FileSpec({dir / "mine"})) == Code::kPermissionDenied &&
           CreateCode(shm) == Code::kPermissionDenied &&
           Pool::Attach(shm, 2, token).status().code() ==
               Code::kPermissionDenied;
  }));
}

// Tests files to which a process must not attach, although they are at the path
// of a pool. Each test changes the file while the pool is in use. Each error
// must name the fault and the remedy.
class AttachRefusalTest : public testing::Test {
 protected:
  void SetUp() override {
    auto pool = Pool::Create(FileSpec({path_}), 2);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    pool_ = *std::move(pool);
  }

  void ExpectRefused(Code code, const std::vector<std::string>& words) {
    const Status status =
        Pool::Attach(FileSpec({path_}), 2, pool_->token()).status();
    EXPECT_EQ(status.code(), code) << status.message();
    for (const std::string& word : words)
      EXPECT_NE(status.message().find(word), std::string::npos)
          << status.message();
  }

  // Writes another layout version to the header, together with a correct
  // checksum.
  void SetVersion(uint32_t version) {
    auto* header = reinterpret_cast<PoolHeader*>(pool_->base());
    header->layout_version = version;
    header->checksum = HeaderChecksum(*header);
  }

  TempDirectory dir_;
  const std::string path_ = dir_ / "pool";
  std::unique_ptr<Pool> pool_;
};

TEST_F(AttachRefusalTest, AttachesToBeginWith) {
  EXPECT_TRUE(Pool::Attach(FileSpec({path_}), 2, pool_->token()).ok());
}

TEST_F(AttachRefusalTest, SymbolicLink) {
  fs::rename(path_, dir_ / "elsewhere");
  fs::create_symlink(dir_ / "elsewhere", path_);
  ExpectRefused(Code::kPermissionDenied, {"symbolic links", "name the file"});
}

TEST_F(AttachRefusalTest, HardLink) {
  fs::create_hard_link(path_, dir_ / "elsewhere");
  ExpectRefused(Code::kPermissionDenied, {"2 names", "remove the other names"});
  fs::remove(dir_ / "elsewhere");
  EXPECT_TRUE(Pool::Attach(FileSpec({path_}), 2, pool_->token()).ok());
}

TEST_F(AttachRefusalTest, WritableByOthers) {
  for (int mode : {0620, 0602, 0666}) {
    fs::permissions(path_, fs::perms(mode));
    ExpectRefused(Code::kPermissionDenied,
                  {"written by other users", "chmod 600"});
  }
  for (int mode : {0644, 0604}) {
    fs::permissions(path_, fs::perms(mode));
    ExpectRefused(Code::kPermissionDenied,
                  {"read by other users", "chmod 600"});
  }
}

TEST_F(AttachRefusalTest, PoolOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(chown(path_.c_str(), kNobody, kNobody), 0);
  ExpectRefused(Code::kPermissionDenied,
                {"belongs to user 65534", "name another path"});
  // A file of root is refused too, even if it lets everybody read and write.
  ASSERT_EQ(chown(path_.c_str(), 0, 0), 0);
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  fs::permissions(path_, fs::perms(0666));
  EXPECT_TRUE(PassesInChild([&] {
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) return false;
    ExpectRefused(Code::kPermissionDenied,
                  {"belongs to user 0", "name another path"});
    return !HasFailure();
  }));
}

TEST_F(AttachRefusalTest, OtherLayoutVersions) {
  for (uint32_t version : {kLayoutVersion - 1, kLayoutVersion + 1}) {
    SetVersion(version);
    ExpectRefused(Code::kDataLoss,
                  {"layout version " + std::to_string(version),
                   "run the same jax_cxl everywhere", "delete the file"});
  }
}

TEST_F(AttachRefusalTest, CutShort) {
  for (uint64_t bytes : {uint64_t{0}, uint64_t{kPageBytes}, 4 * kMiB - 1}) {
    fs::resize_file(path_, bytes);
    ExpectRefused(Code::kDataLoss, {"too short", "leave the file alone"});
  }
}

TEST_F(AttachRefusalTest, SomethingElse) {
  std::memset(pool_->base(), 'x', kPageBytes);
  ExpectRefused(Code::kDataLoss, {"not a jax_cxl pool", "same pool URI"});
  fs::remove(path_);
  fs::create_directory(path_);
  ExpectRefused(Code::kInvalidArgument, {"name a file"});
  fs::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  ExpectRefused(Code::kInvalidArgument, {"not a regular file", "name a file"});
}

TEST(PoolRefusalTest, HardLinksAreRefused) {
  const TempDirectory dir;
  WriteFile(dir / "mine", "");
  fs::create_hard_link(dir / "mine", dir / "pool");
  EXPECT_EQ(CreateCode(FileSpec({dir / "pool"}), "remove the other names"),
            Code::kPermissionDenied);
}

TEST(PoolRefusalTest, WrongArgumentsAreNamed) {
  const TempDirectory dir;
  PoolSpec file = FileSpec({dir / "pool"});
  file.bytes += 512;
  EXPECT_EQ(CreateCode(file, "page size"), Code::kInvalidArgument);
  file = FileSpec({dir / "pool"});
  file.offset = 100;
  EXPECT_EQ(CreateCode(file, "page size"), Code::kInvalidArgument);
  file.offset = UINT64_MAX / kPageBytes * kPageBytes;
  EXPECT_EQ(CreateCode(file, "too large"), Code::kInvalidArgument);
  file = FileSpec({dir / "pool"}, kMiB);
  EXPECT_EQ(CreateCode(file, "too small for 2 ranks"),
            Code::kResourceExhausted);
  file = FileSpec({dir / "pool"});
  for (int devices : {0, -1, kMaxExtents + 1}) {
    file.devices_per_path = devices;
    EXPECT_EQ(CreateCode(file, "devices"), Code::kInvalidArgument);
  }
  for (int world_size : {0, -1, kMaxWorldSize + 1}) {
    EXPECT_EQ(Pool::Create(ShmSpec("x"), world_size).status().code(),
              Code::kInvalidArgument);
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(PoolRefusalTest, AttachChecksThatBothSidesAgree) {
  const TempDirectory dir;
  const PoolSpec spec = FileSpec({dir / "a", dir / "b"}, 8 * kMiB);
  auto pool = Pool::Create(spec, 2);
  ASSERT_TRUE(pool.ok());
  const uint64_t token = (*pool)->token();
  auto expect_refused = [&](const PoolSpec& other, int world_size,
                            uint64_t with_token, const std::string& word) {
    const auto peer = Pool::Attach(other, world_size, with_token);
    EXPECT_EQ(peer.status().code(), Code::kDataLoss);
    EXPECT_NE(peer.status().message().find(word), std::string::npos)
        << peer.status().message();
  };
  expect_refused(spec, 2, token + 1, "another job");
  expect_refused(spec, 3, token, "2 ranks");
  PoolSpec other = spec;
  other.paths = {spec.paths[1], spec.paths[0]};
  expect_refused(other, 2, token, "same order");
  other = spec;
  other.paths = {spec.paths[0]};
  expect_refused(other, 2, token, "same pool URI");
  other = spec;
  other.devices_per_path = 2;
  expect_refused(other, 2, token, "same pool URI");
  other = spec;
  other.bytes = 4 * kMiB;
  expect_refused(other, 2, token, "same pool URI");
  other = spec;
  other.offset = kMiB;
  other.bytes = 7 * kMiB;
  expect_refused(other, 2, token, "offset included");
  other = spec;
  other.bytes = 16 * kMiB;
  expect_refused(other, 2, token, "too short");
  fs::resize_file(spec.paths[1], 8 * kMiB - 1);
  expect_refused(spec, 2, token, "too short");
}

}  // namespace
}  // namespace jax_cxl::pool
