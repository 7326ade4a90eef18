// Sanitizers: address, thread

// Tests memory in files that outlive their jobs: what it keeps, and what it
// refuses.
#include "cc/store/memory/persistent_memory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cc/pool/pool.h"
#include "cc/testing/pool/memory_bytes.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

namespace fs = std::filesystem;

class PersistentMemoryTest : public testing::Test {
 protected:
  TempDirectory dir_;
};

TEST_F(PersistentMemoryTest, StaysInFilesOfSeveralDevices) {
  const PoolSpec spec = FileSpec({dir_ / "a", dir_ / "b", dir_ / "c"}, kMiB);
  {
    const auto memory = Open(spec);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(memory->num_devices(), 3);
    EXPECT_EQ(memory->device_bytes(), kMiB);
    EXPECT_EQ(memory->total_bytes(), 3 * kMiB);
    for (int device = 0; device < 3; ++device) {
      EXPECT_EQ(ReadBack(*memory, device, 0, kMiB), Bytes(kMiB))
          << "device " << device << " is new";
      ASSERT_TRUE(memory->Write(device, 4097, Filled(5000, device)).ok());
      ASSERT_TRUE(memory->StoreWord(device, kMiB - 8, 100 + device).ok());
    }
  }
  for (const std::string& path : spec.paths) {
    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0) << path << " is gone";
    EXPECT_EQ(info.st_mode & 0777, 0600u) << path;
    EXPECT_EQ(static_cast<uint64_t>(info.st_size), kMiB) << path;
  }
  const auto again = Open(spec);
  ASSERT_NE(again, nullptr);
  for (int device = 0; device < 3; ++device) {
    EXPECT_EQ(ReadBack(*again, device, 4097, 5000), Filled(5000, device));
    EXPECT_EQ(ReadBack(*again, device, 0, 4097), Bytes(4097));
    EXPECT_EQ(*again->LoadWord(device, kMiB - 8), 100u + device);
    // Device i is the file of path i.
    std::ifstream file(spec.paths[device], std::ios::binary);
    file.seekg(4097);
    Bytes stored(5000);
    file.read(reinterpret_cast<char*>(stored.data()), stored.size());
    EXPECT_EQ(stored, Filled(5000, device)) << "device " << device;
  }
}

TEST_F(PersistentMemoryTest, TwoMappingsSeeTheSameBytes) {
  const PoolSpec spec = FileSpec({dir_ / "a", dir_ / "b"}, kMiB);
  const auto one = Open(spec);
  const auto other = Open(spec);
  ASSERT_TRUE(one->Write(1, 0, Filled(4096, 1)).ok());
  EXPECT_EQ(ReadBack(*other, 1, 0, 4096), Filled(4096, 1));
  EXPECT_EQ(ReadBack(*other, 0, 0, 4096), Bytes(4096));
  EXPECT_EQ(std::memcmp(other->At(1, 100, 10), one->At(1, 100, 10), 10), 0);
  EXPECT_EQ(one->At(1, 0, 0) - one->base(), static_cast<ptrdiff_t>(kMiB));
}

TEST_F(PersistentMemoryTest, PartsOfAPathAreDevices) {
  PoolSpec spec = FileSpec({dir_ / "a"}, 5 * kMiB + 4096);
  spec.devices_per_path = 3;
  const auto memory = Open(spec);
  ASSERT_EQ(memory->num_devices(), 3);
  const uint64_t bytes = memory->device_bytes();
  EXPECT_EQ(bytes % 4096, 0u);
  EXPECT_GT(bytes, (5 * kMiB + 4096) / 3 - 4096);
  for (int device = 0; device < 3; ++device)
    ASSERT_TRUE(memory->Write(device, 0, Filled(bytes, device)).ok());
  for (int device = 0; device < 3; ++device)
    EXPECT_EQ(ReadBack(*memory, device, 0, bytes), Filled(bytes, device))
        << "device " << device << " overlaps another one";
}

TEST_F(PersistentMemoryTest, ShorterFileGrowsByZerosAndKeepsWhatItHas) {
  const std::string path = dir_ / "a";
  WriteFile(path, std::string(4096, 'x'));
  const auto memory = Open(FileSpec({path}, kMiB));
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(memory->device_bytes(), kMiB);
  EXPECT_EQ(ReadBack(*memory, 0, 0, 4096), Bytes(4096, std::byte{'x'}));
  EXPECT_EQ(ReadBack(*memory, 0, 4096, kMiB - 4096), Bytes(kMiB - 4096));
  EXPECT_EQ(fs::file_size(path), kMiB);
}

TEST_F(PersistentMemoryTest, LongerFileKeepsItsSize) {
  const std::string path = dir_ / "a";
  WriteFile(path, std::string(2 * kMiB, 'x'));
  PoolSpec spec = FileSpec({path}, kMiB);
  spec.offset = 4096;
  {
    const auto memory = Open(spec);
    EXPECT_EQ(memory->device_bytes(), kMiB);
    ASSERT_TRUE(memory->Write(0, 0, Bytes(kMiB)).ok());
  }
  EXPECT_EQ(fs::file_size(path), 2 * kMiB);
  spec.offset = 0;
  spec.bytes = 0;
  const auto whole = Open(spec);
  EXPECT_EQ(whole->device_bytes(), 2 * kMiB) << "without a size all of it";
  EXPECT_EQ(ReadBack(*whole, 0, 4095, 2)[0], std::byte{'x'});
  EXPECT_EQ(ReadBack(*whole, 0, 4095, 2)[1], std::byte{0});
  EXPECT_EQ(ReadBack(*whole, 0, 4096 + kMiB, 1)[0], std::byte{'x'});
}

TEST_F(PersistentMemoryTest, DevicesOfDifferentSizesHaveThatOfTheSmallest) {
  WriteFile(dir_ / "a", std::string(2 * kMiB, 'x'));
  WriteFile(dir_ / "b", std::string(kMiB, 'y'));
  const auto memory = Open(FileSpec({dir_ / "a", dir_ / "b"}, 0));
  EXPECT_EQ(memory->device_bytes(), kMiB);
  EXPECT_EQ(ReadBack(*memory, 1, 0, 1)[0], std::byte{'y'});
  EXPECT_EQ(memory->At(0, kMiB, 1), nullptr);
}

TEST_F(PersistentMemoryTest, RefusesWhatHasNoSizeOrIsNoFileOfItsOwn) {
  auto refused = [](const PoolSpec& spec, Code code, const std::string& word) {
    ExpectRefused(TryOpen(spec, OpenMode::kFormat).status(), code, word);
  };
  refused(ShmSpec("a"), Code::kInvalidArgument, "must be in files or devices");
  refused(FileSpec({}), Code::kInvalidArgument, "must be in files or devices");
  refused(FileSpec({dir_ / "new"}, 0), Code::kInvalidArgument, "pass size=");
  refused(FileSpec({dir_ / "no/such/folder"}), Code::kNotFound, "no/such");
  refused(FileSpec({dir_.path()}), Code::kInvalidArgument, "name a file");
  WriteFile(dir_ / "others", std::string(kMiB, 'x'));
  fs::permissions(dir_ / "others", fs::perms(0644));
  refused(FileSpec({dir_ / "others"}), Code::kPermissionDenied, "chmod 600");
}

TEST_F(PersistentMemoryTest, PoolsKeepOutOfItWhileItIsOpen) {
  const PoolSpec spec = FileSpec({dir_ / "a"});
  auto memory = Open(spec);
  EXPECT_EQ(CreateCode(spec, "in use"), Code::kAlreadyExists);
  EXPECT_NE(Open(spec), nullptr) << "other processes of the job share it";
}

TEST_F(PersistentMemoryTest, NothingLeavesADevice) {
  const auto memory = Open(FileSpec({dir_ / "a", dir_ / "b"}, kMiB));
  ASSERT_TRUE(memory->Write(1, 0, Filled(kMiB, 3)).ok());
  struct Range {
    int device;
    uint64_t offset;
    uint64_t bytes;
  };
  for (const auto& [device, offset, bytes] :
       {Range{0, kMiB - 7, 8}, Range{0, kMiB, 1}, Range{0, 0, kMiB + 1},
        Range{0, UINT64_MAX, 8}, Range{0, UINT64_MAX - 7, 8}, Range{2, 0, 8},
        Range{-1, 0, 8}}) {
    Bytes data(bytes, std::byte{0xff});
    const Bytes before = data;
    SCOPED_TRACE(testing::Message() << "device " << device << ", offset "
                                    << offset << ", " << bytes << " bytes");
    EXPECT_EQ(memory->At(device, offset, bytes), nullptr);
    for (const Status& status :
         {memory->Write(device, offset, data),
          memory->Read(device, offset, data),
          memory->PublishDeviceWrites(device, offset, bytes)})
      ExpectRefused(status, Code::kInvalidArgument, "outside the memory");
    EXPECT_EQ(data, before);
  }
  EXPECT_EQ(ReadBack(*memory, 1, 0, kMiB), Filled(kMiB, 3)) << "the neighbor";
  // The last bytes of a device can be written. So can an empty range that
  // begins at the end of the device.
  EXPECT_TRUE(memory->Write(0, kMiB - 3, Filled(3, 1)).ok());
  EXPECT_TRUE(memory->Write(0, kMiB, {}).ok());
  EXPECT_NE(memory->At(0, kMiB, 0), nullptr);
}

TEST_F(PersistentMemoryTest, WordsLieInTheMemory) {
  const auto memory = Open(FileSpec({dir_ / "a"}, kMiB));
  ASSERT_TRUE(memory->StoreWord(0, 64, 0x0123456789abcdef).ok());
  EXPECT_EQ(*memory->LoadWord(0, 64), 0x0123456789abcdefu);
  EXPECT_EQ(ReadBack(*memory, 0, 64, 1)[0], std::byte{0xef});
  EXPECT_EQ(ReadBack(*memory, 0, 56, 8), Bytes(8));
  EXPECT_EQ(ReadBack(*memory, 0, 72, 8), Bytes(8));
  for (uint64_t offset : {kMiB - 4, kMiB, UINT64_MAX - 7}) {
    ExpectRefused(memory->StoreWord(0, offset, 1), Code::kInvalidArgument,
                  "outside the memory");
    ExpectRefused(memory->LoadWord(0, offset).status(), Code::kInvalidArgument,
                  "outside the memory");
  }
  EXPECT_TRUE(memory->StoreWord(0, kMiB - 8, 1).ok());
}

TEST_F(PersistentMemoryTest, FileThatIsCutShortIsAnError) {
  const std::string path = dir_ / "a";
  const auto memory = Open(FileSpec({path}, kMiB));
  ASSERT_TRUE(memory->Write(0, kMiB / 2, Filled(8, 1)).ok());
  fs::resize_file(path, 4096);
  Bytes data(8);
  ExpectRefused(memory->Read(0, kMiB / 2, data), Code::kDataLoss, "cut short");
  ExpectRefused(memory->Write(0, kMiB / 2, data), Code::kDataLoss, "cut short");
  ExpectRefused(memory->StoreWord(0, 0, 1), Code::kDataLoss, "cut short");
  ExpectRefused(memory->LoadWord(0, 0).status(), Code::kDataLoss, "cut short");
}

TEST_F(PersistentMemoryTest, FileThatIsCutShortIsFoundWithoutAnAccess) {
  const std::string path = dir_ / "a";
  const auto memory = Open(FileSpec({path}, kMiB));
  memory->CheckFiles();
  EXPECT_TRUE(memory->CheckIntact(0).ok());
  fs::resize_file(path, kMiB - 1);
  EXPECT_TRUE(memory->CheckIntact(0).ok());
  memory->CheckFiles();
  fs::resize_file(path, kMiB);  // Too late: what it had is gone.
  memory->CheckFiles();
  ExpectRefused(memory->CheckIntact(0), Code::kDataLoss, "cut short");
}

}  // namespace
}  // namespace jax_cxl::pool
