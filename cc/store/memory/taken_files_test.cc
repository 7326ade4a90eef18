// Sanitizers: address

// Tests which files are taken for memory that outlives its jobs. A file that is
// refused must not change in any byte.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "cc/pool/pool.h"
#include "cc/store/memory/persistent_memory.h"
#include "cc/testing/pool/memory_bytes.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

namespace fs = std::filesystem;

std::string Contents(const std::string& path) {
  std::ostringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

class TakenFilesTest : public testing::Test {
 protected:
  // Makes files with the signature, all of the same size.
  void MakeOwn(const std::vector<std::string>& paths) {
    const auto memory = Open(FileSpec(paths, kMiB));
    for (int device = 0; device < memory->num_devices(); ++device)
      ASSERT_TRUE(
          memory->Write(device, 0, std::as_bytes(std::span(kSignature))).ok());
  }

  TempDirectory dir_;
  const std::string a_ = dir_ / "a", b_ = dir_ / "b", c_ = dir_ / "c";
};

TEST_F(TakenFilesTest, DataOfSomethingElseAreLeftAlone) {
  const std::string zeros(kMiB, '\0');
  std::vector<std::string> contents = {"precious", zeros + "precious"};
  for (const size_t at :
       {size_t{0}, size_t{4096}, size_t{kMiB / 2}, kMiB - 1}) {
    contents.push_back(zeros);
    contents.back()[at] = 'x';
  }
  for (const std::string& content : contents) {
    WriteFile(a_, content);
    PoolSpec spec = FileSpec({b_, a_});
    ExpectRefused(TryOpen(spec).status(), Code::kDataLoss, "left alone");
    ExpectRefused(Pool::Create(spec, 2).status(), Code::kDataLoss, a_ + " ");
    // A part that begins after the end of the file is refused too.
    spec.offset = 8 * kMiB;
    ExpectRefused(TryOpen(spec).status(), Code::kDataLoss, "left alone");
    ExpectRefused(Pool::Create(spec, 2).status(), Code::kDataLoss,
                  "left alone");
    EXPECT_EQ(Contents(a_), content);
    EXPECT_FALSE(fs::exists(b_)) << "a new file remains";
  }
}

TEST_F(TakenFilesTest, OtherPathsDoNotGrowIfOneIsRefused) {
  WriteFile(a_, "");
  WriteFile(b_, std::string(100, '\0'));
  WriteFile(c_, "precious");
  const PoolSpec spec = FileSpec({a_, b_, c_});
  EXPECT_FALSE(TryOpen(spec).ok());
  EXPECT_FALSE(Pool::Create(spec, 2).ok());
  EXPECT_EQ(fs::file_size(a_), 0u);
  EXPECT_EQ(fs::file_size(b_), 100u);
  // The other paths do not grow either if the last path cannot be created.
  fs::remove(c_);
  PoolSpec large = FileSpec({a_, b_, dir_ / "no/c"}, kMiB);
  EXPECT_FALSE(TryOpen(large).ok());
  EXPECT_EQ(fs::file_size(a_), 0u);
  EXPECT_EQ(fs::file_size(b_), 100u);
}

TEST_F(TakenFilesTest, ZerosAndHolesAreTaken) {
  WriteFile(a_, std::string(kMiB, '\0'));
  WriteFile(b_, "");
  fs::resize_file(b_, 64 * kMiB);
  EXPECT_TRUE(TryOpen(FileSpec({a_, b_, c_}, kMiB)).ok());
  EXPECT_EQ(fs::file_size(b_), 64 * kMiB);
}

TEST_F(TakenFilesTest, OneFileUnderTwoNamesIsRefused) {
  fs::create_directory_symlink(dir_.path(), dir_ / "link");
  for (const bool exists : {false, true}) {
    if (exists) WriteFile(a_, "");
    for (const std::string& other :
         {dir_ / "./a", dir_ / "link/a", dir_.path() + "//a"}) {
      const PoolSpec spec = FileSpec({a_, b_, other});
      ExpectRefused(TryOpen(spec).status(), Code::kInvalidArgument, "are one");
      ExpectRefused(Pool::Create(spec, 2).status(), Code::kInvalidArgument,
                    "are one file");
      EXPECT_EQ(fs::exists(a_), exists);
      EXPECT_FALSE(fs::exists(b_));
    }
  }
}

TEST_F(TakenFilesTest, LostPathsAreNotMadeNew) {
  for (const auto& lose : std::vector<std::function<void()>>{
           [&] { fs::remove(b_); }, [&] { fs::resize_file(b_, 0); },
           [&] { fs::resize_file(b_, 8192); }}) {
    fs::remove(b_);
    MakeOwn({a_, b_, c_});
    lose();
    const bool there = fs::exists(b_);
    const std::string content = Contents(b_);
    const PoolSpec spec = FileSpec({a_, b_, c_}, kMiB);
    for (const uint64_t bytes : {kMiB, uint64_t{0}}) {
      PoolSpec sized = spec;
      sized.bytes = bytes;
      const auto memory = TryOpen(sized);
      ASSERT_TRUE(memory.ok()) << memory.status().message();
      EXPECT_EQ((*memory)->device_bytes(), kMiB);
      EXPECT_TRUE((*memory)->CheckIntact(0).ok());
      ExpectRefused((*memory)->CheckIntact(1), Code::kDataLoss, b_);
      ExpectRefused((*memory)->Write(1, 0, Bytes(8)), Code::kDataLoss, b_);
      EXPECT_TRUE((*memory)->Write(2, 4096, Bytes(8)).ok());
    }
    EXPECT_EQ(fs::exists(b_), there);
    EXPECT_EQ(Contents(b_), content);
    const auto repaired = TryOpen(spec, OpenMode::kRepair);
    ASSERT_TRUE(repaired.ok()) << repaired.status().message();
    EXPECT_TRUE((*repaired)->CheckIntact(1).ok());
    EXPECT_EQ(fs::file_size(b_), kMiB);
  }
}

TEST_F(TakenFilesTest, ExistingMemoryIsNotMade) {
  const PoolSpec spec = FileSpec({a_, b_}, kMiB);
  EXPECT_FALSE(TryOpen(spec, OpenMode::kExisting).ok());
  EXPECT_FALSE(fs::exists(a_));
  WriteFile(a_, "");
  ExpectRefused(TryOpen(spec, OpenMode::kExisting).status(), Code::kNotFound,
                "empty");
  EXPECT_EQ(fs::file_size(a_), 0u);
  WriteFile(a_, std::string(8192, '\0'));
  ExpectRefused(TryOpen(spec, OpenMode::kExisting).status(), Code::kNotFound,
                "empty");
  EXPECT_EQ(fs::file_size(a_), 8192u);
}

TEST_F(TakenFilesTest, TheLostPathIsNamed) {
  for (const int lost : {0, 1, 2}) {
    const std::vector<std::string> paths = {a_, b_, c_};
    for (const std::string& path : paths) fs::remove(path);
    const auto memory = Open(FileSpec(paths, kMiB));
    fs::resize_file(paths[lost], 0);
    for (int device = 0; device < 3; ++device) {
      Bytes data(8);
      const Status status = memory->Read(device, 4096, data);
      if (device == lost)
        ExpectRefused(status, Code::kDataLoss, paths[lost] + " was cut short");
      else
        EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST_F(TakenFilesTest, DeletedAndReplacedFilesAreNotUsed) {
  for (const bool replaced : {false, true}) {
    fs::remove(a_);
    const auto memory = Open(FileSpec({a_, b_}, kMiB));
    ASSERT_TRUE(memory->Write(0, 0, Filled(8, 1)).ok());
    fs::remove(a_);
    if (replaced) WriteFile(a_, "");
    memory->CheckFiles();
    Bytes data(8);
    for (const Status& status :
         {memory->Write(0, 0, data), memory->StoreWord(0, 0, 1),
          memory->Read(0, 0, data), memory->LoadWord(0, 0).status()})
      ExpectRefused(status, Code::kDataLoss, a_ + " was deleted or replaced");
    EXPECT_TRUE(memory->Write(1, 0, Bytes(8)).ok());
  }
}

TEST_F(TakenFilesTest, WrongArgumentsAreNamed) {
  PoolSpec spec = FileSpec({a_}, kMiB);
  spec.offset = 1;
  ExpectRefused(TryOpen(spec).status(), Code::kInvalidArgument, "page size");
  spec = FileSpec({a_}, kMiB + 1);
  ExpectRefused(TryOpen(spec).status(), Code::kInvalidArgument, "page size");
  spec = FileSpec({a_}, kMiB);
  spec.devices_per_path = 65;
  ExpectRefused(TryOpen(spec).status(), Code::kInvalidArgument, "devices");
  spec.devices_per_path = 1;
  const auto small = PersistentMemory::Open(spec, OpenMode::kNormal, 2 * kMiB);
  ExpectRefused(small.status(), Code::kResourceExhausted, "at least 2097152");
  WriteFile(b_, std::string(4096, '\0'));
  spec = FileSpec({b_}, 0);
  spec.offset = 8192;
  ExpectRefused(TryOpen(spec).status(), Code::kInvalidArgument,
                "nothing at offset 8192");
  EXPECT_FALSE(fs::exists(a_));
}

}  // namespace
}  // namespace jax_cxl::pool
