// Sanitizers: address, thread

// Memory that outlives its jobs: what stays, what is refused, and what passes
// between hosts.
#include "cc/pool/persistent_memory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/pool/coherence/flush.h"
#include "cc/pool/open/dax.h"
#include "cc/pool/pool.h"
#include "cc/testing/incoherent/incoherent_cache.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

Bytes Filled(size_t size, int seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + seed);
  return bytes;
}

std::unique_ptr<PersistentMemory> Open(const PoolSpec& spec) {
  auto memory = PersistentMemory::Open(spec);
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  return memory.ok() ? *std::move(memory) : nullptr;
}

void ExpectRefused(const Status& status, Code code, const std::string& word) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
}

Bytes ReadBack(const PersistentMemory& memory, int device, uint64_t offset,
               size_t size) {
  Bytes bytes(size, std::byte{0x5a});
  const Status status = memory.Read(device, offset, bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

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
    ASSERT_EQ(stat(path.c_str(), &info), 0) << path << " has gone";
    EXPECT_EQ(info.st_mode & 0777, 0600u) << path;
    EXPECT_EQ(static_cast<uint64_t>(info.st_size), kMiB) << path;
  }
  const auto again = Open(spec);
  ASSERT_NE(again, nullptr);
  for (int device = 0; device < 3; ++device) {
    EXPECT_EQ(ReadBack(*again, device, 4097, 5000), Filled(5000, device));
    EXPECT_EQ(ReadBack(*again, device, 0, 4097), Bytes(4097));
    EXPECT_EQ(*again->LoadWord(device, kMiB - 8), 100u + device);
    // The files hold it, in the order of the paths.
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
    ExpectRefused(PersistentMemory::Open(spec).status(), code, word);
  };
  refused(ShmSpec("a"), Code::kInvalidArgument, "paths of files or devices");
  refused(FileSpec({}), Code::kInvalidArgument, "paths of files or devices");
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
      ExpectRefused(status, Code::kInvalidArgument, "leave the memory");
    EXPECT_EQ(data, before);
  }
  EXPECT_EQ(ReadBack(*memory, 1, 0, kMiB), Filled(kMiB, 3)) << "the neighbour";
  // The last bytes, and no bytes at the end.
  EXPECT_TRUE(memory->Write(0, kMiB - 3, Filled(3, 1)).ok());
  EXPECT_TRUE(memory->Write(0, kMiB, {}).ok());
  EXPECT_NE(memory->At(0, kMiB, 0), nullptr);
}

TEST_F(PersistentMemoryTest, WordsLieAtMultiplesOfEight) {
  const auto memory = Open(FileSpec({dir_ / "a"}, kMiB));
  ASSERT_TRUE(memory->StoreWord(0, 64, 0x0123456789abcdef).ok());
  EXPECT_EQ(*memory->LoadWord(0, 64), 0x0123456789abcdefu);
  EXPECT_EQ(ReadBack(*memory, 0, 64, 1)[0], std::byte{0xef});
  EXPECT_EQ(ReadBack(*memory, 0, 56, 8), Bytes(8));
  EXPECT_EQ(ReadBack(*memory, 0, 72, 8), Bytes(8));
  for (uint64_t offset : {1, 4, 7, 12}) {
    ExpectRefused(memory->StoreWord(0, offset, 1), Code::kInvalidArgument,
                  "no multiple of 8");
    ExpectRefused(memory->LoadWord(0, offset).status(), Code::kInvalidArgument,
                  "no multiple of 8");
  }
  for (uint64_t offset : {kMiB - 4, kMiB, UINT64_MAX - 7}) {
    ExpectRefused(memory->StoreWord(0, offset, 1), Code::kInvalidArgument,
                  "leave the memory");
    ExpectRefused(memory->LoadWord(0, offset).status(), Code::kInvalidArgument,
                  "leave the memory");
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

// A machine whose dax devices are regular files.
class DaxMachine {
 public:
  explicit DaxMachine(const TempDirectory& dir) : dir_(dir) {
    system_.sysfs = dir_ / "sys";
    system_.device_number = [this](const struct stat&,
                                   const std::string& path) -> Result<dev_t> {
      for (size_t i = 0; i < paths_.size(); ++i)
        if (paths_[i] == path) return makedev(251, i);
      return Error(Code::kInvalidArgument, path, " is no device");
    };
  }

  // Adds a device that is full of 0xee.
  std::string Add(uint64_t size) {
    const std::string number = std::to_string(paths_.size());
    paths_.push_back(dir_ / ("dax" + number));
    std::ofstream(paths_.back()) << std::string(size, '\xee');
    const std::string folder = system_.sysfs + "/dev/char/251:" + number;
    fs::create_directories(folder);
    std::ofstream(folder + "/size") << size << "\n";
    std::ofstream(folder + "/align") << 2 * kMiB << "\n";
    return paths_.back();
  }

  const DaxSystem& system() const { return system_; }

 private:
  const TempDirectory& dir_;
  DaxSystem system_;
  std::vector<std::string> paths_;
};

PoolSpec DaxSpec(std::vector<std::string> paths) {
  PoolSpec spec;
  spec.kind = PoolKind::kDax;
  spec.paths = std::move(paths);
  return spec;
}

TEST_F(PersistentMemoryTest, DaxDevicesKeepWhatLiesBeforeTheOffset) {
  if (!FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
  DaxMachine machine(dir_);
  PoolSpec spec = DaxSpec({machine.Add(8 * kMiB), machine.Add(6 * kMiB)});
  spec.offset = 2 * kMiB;
  auto memory = PersistentMemory::Open(spec, machine.system());
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_EQ((*memory)->num_devices(), 2);
  EXPECT_EQ((*memory)->device_bytes(), 4 * kMiB) << "the rest of the smaller";
  EXPECT_EQ(ReadBack(**memory, 1, 0, 1)[0], std::byte{0xee})
      << "what a device holds stays";
  for (int device : {0, 1})
    ASSERT_TRUE((*memory)->Write(device, 0, Filled(4 * kMiB, device)).ok());
  auto again = PersistentMemory::Open(spec, machine.system());
  ASSERT_TRUE(again.ok()) << "another process: " << again.status().message();
  EXPECT_EQ(ReadBack(**again, 1, 0, 4 * kMiB), Filled(4 * kMiB, 1));
  ASSERT_TRUE((*memory)->StoreWord(1, 8, 17).ok());
  EXPECT_EQ(*(*again)->LoadWord(1, 8), 17u);

  ExpectRefused(Pool::Create(spec, 2, machine.system()).status(),
                Code::kAlreadyExists, "in use");
  spec.offset = 3 * kMiB;
  ExpectRefused(PersistentMemory::Open(spec, machine.system()).status(),
                Code::kInvalidArgument, "offset");
  memory->reset();
  again->reset();
  for (const std::string& path : spec.paths) {
    std::ifstream file(path, std::ios::binary);
    std::string before(2 * kMiB, '\0');
    file.read(before.data(), before.size());
    EXPECT_EQ(before, std::string(2 * kMiB, '\xee')) << path;
  }
}

// Remembers by which mode the memory works.
class ModeRecorder final : public Interposer {
 public:
  ModeRecorder(const MappedMemory& memory, CoherenceMode* mode)
      : base_(memory.base), mode_(memory.mode) {
    *mode = memory.mode;
  }
  std::byte* base() const override { return base_; }
  Coherence coherence() override { return Coherence(mode_); }

 private:
  std::byte* base_;
  CoherenceMode mode_;
};

TEST_F(PersistentMemoryTest, DevicesAreAlwaysWrittenBack) {
  if (!FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
  DaxMachine machine(dir_);
  const std::string device = machine.Add(4 * kMiB);
  auto mode_of = [&](PoolSpec spec, CoherenceMode asked) {
    CoherenceMode mode = CoherenceMode::kUncached;
    spec.coherence = asked;
    spec.make_interposer =
        [&mode](
            const MappedMemory& memory) -> Result<std::unique_ptr<Interposer>> {
      return std::unique_ptr<Interposer>(
          std::make_unique<ModeRecorder>(memory, &mode));
    };
    auto memory = PersistentMemory::Open(spec, machine.system());
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    return mode;
  };
  const PoolSpec dax = DaxSpec({device});
  EXPECT_EQ(mode_of(dax, CoherenceMode::kCoherent), CoherenceMode::kFlush)
      << "lines of a host that dies must be in the memory";
  EXPECT_EQ(mode_of(dax, CoherenceMode::kFlush), CoherenceMode::kFlush);
  const PoolSpec file = FileSpec({dir_ / "a"});
  EXPECT_EQ(mode_of(file, CoherenceMode::kCoherent), CoherenceMode::kCoherent);
  EXPECT_EQ(mode_of(file, CoherenceMode::kFlush), CoherenceMode::kFlush);
}

// Two hosts without coherence between their caches.
class IncoherentMemoryTest : public testing::TestWithParam<uint64_t> {
 protected:
  static constexpr uint64_t kPayload = 3 * 4096 + 64;
  static constexpr uint64_t kWord = kMiB - 64;

  IncoherentMemoryTest() {
    PoolSpec spec = FileSpec({dir_ / "a", dir_ / "b"}, kMiB);
    const MakeInterposer make = IncoherentHosts(GetParam(), "");
    spec.make_interposer =
        [this, make](
            const MappedMemory& memory) -> Result<std::unique_ptr<Interposer>> {
      CXL_ASSIGN_OR_RETURN(std::unique_ptr<Interposer> host, make(memory));
      caches_[opened_++] = static_cast<IncoherentCache*>(host.get());
      return host;
    };
    for (auto& host : hosts_) host = Open(spec);
  }

  // Waits until a word is there; what it is after a while if it never comes.
  static uint64_t Await(const PersistentMemory& host, int device,
                        uint64_t value) {
    for (int i = 0; i < 1'000'000; ++i) {
      if (*host.LoadWord(device, kWord) == value) return value;
      std::this_thread::yield();
    }
    return *host.LoadWord(device, kWord);
  }

  TempDirectory dir_;
  std::array<IncoherentCache*, 2> caches_ = {};
  int opened_ = 0;
  std::array<std::unique_ptr<PersistentMemory>, 2> hosts_;
};

// The same bytes again and again, so that each host's cache has the old ones.
TEST_P(IncoherentMemoryTest, WhatIsPublishedBeforeAWordIsReadAfterIt) {
  ASSERT_NE(hosts_[0]->base(), hosts_[1]->base());
  for (uint64_t round = 1; round <= 30; ++round) {
    for (int device : {0, 1}) {
      const PersistentMemory& writer = *hosts_[(round + device) % 2];
      const PersistentMemory& reader = *hosts_[(round + device + 1) % 2];
      const Bytes data = Filled(kPayload, static_cast<int>(7 * round + device));
      ASSERT_TRUE(writer.Write(device, 64, data).ok());
      ASSERT_TRUE(writer.StoreWord(device, kWord, round).ok());
      ASSERT_EQ(*reader.LoadWord(device, kWord), round)
          << "a word comes at once";
      ASSERT_EQ(ReadBack(reader, device, 64, kPayload), data)
          << "round " << round << ", device " << device;
    }
  }
}

TEST_P(IncoherentMemoryTest, HostsThatRunAtTheSameTime) {
  constexpr uint64_t kRounds = 50;
  std::thread writer([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      // It may write again once the other host has read.
      if (Await(*hosts_[0], 1, round - 1) != round - 1) return;
      if (!hosts_[0]
               ->Write(0, 64, Filled(kPayload, static_cast<int>(round)))
               .ok() ||
          !hosts_[0]->StoreWord(0, kWord, round).ok())
        return;
    }
  });
  uint64_t wrong = 0;
  for (uint64_t round = 1; round <= kRounds && wrong == 0; ++round) {
    if (Await(*hosts_[1], 0, round) != round ||
        ReadBack(*hosts_[1], 0, 64, kPayload) !=
            Filled(kPayload, static_cast<int>(round)))
      wrong = round;
    EXPECT_TRUE(hosts_[1]->StoreWord(1, kWord, round).ok());
  }
  writer.join();
  EXPECT_EQ(wrong, 0u) << "the first round that was read wrong";
}

TEST_P(IncoherentMemoryTest, WritesOfDevicesArePublished) {
  for (uint64_t round = 1; round <= 30; ++round) {
    const Bytes data = Filled(kPayload, static_cast<int>(round));
    caches_[0]->DeviceWrite(hosts_[0]->At(0, 64, kPayload), data.data(),
                            kPayload);
    ASSERT_TRUE(hosts_[0]->PublishDeviceWrites(0, 64, kPayload).ok());
    ASSERT_TRUE(hosts_[0]->StoreWord(0, kWord, round).ok());
    ASSERT_EQ(*hosts_[1]->LoadWord(0, kWord), round);
    ASSERT_EQ(ReadBack(*hosts_[1], 0, 64, kPayload), data) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, IncoherentMemoryTest,
                         testing::Range<uint64_t>(1, 6));

}  // namespace
}  // namespace jax_cxl::pool
