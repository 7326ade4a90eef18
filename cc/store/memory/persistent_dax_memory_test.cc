// Sanitizers: address, thread

// Tests memory on CXL devices that outlives its jobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cc/pool/coherence/cache.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/pool.h"
#include "cc/store/memory/persistent_memory.h"
#include "cc/testing/pool/fake_dax.h"
#include "cc/testing/pool/memory_bytes.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

class PersistentDaxMemoryTest : public testing::Test {
 protected:
  Result<std::unique_ptr<PersistentMemory>> OpenOnMachine(
      const PoolSpec& spec, OpenMode mode = OpenMode::kFormat) {
    return PersistentMemory::Open(spec, mode);
  }

  FakeDax machine_;
};

TEST_F(PersistentDaxMemoryTest, KeepsWhatLiesBeforeTheOffset) {
  if (!FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
  PoolSpec spec = machine_.Spec({machine_.Add("dax0.0", 8 * kMiB, "2097152"),
                                 machine_.Add("dax1.0", 6 * kMiB, "2097152")});
  spec.offset = 2 * kMiB;
  auto memory = OpenOnMachine(spec);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_EQ((*memory)->num_devices(), 2);
  EXPECT_EQ((*memory)->device_bytes(), 4 * kMiB) << "the rest of the smaller";
  EXPECT_EQ(ReadBack(**memory, 1, 0, 1)[0], std::byte{0xee})
      << "what a device holds stays";
  for (int device : {0, 1})
    ASSERT_TRUE((*memory)->Write(device, 0, Filled(4 * kMiB, device)).ok());
  auto again = OpenOnMachine(spec);
  ASSERT_TRUE(again.ok()) << "another process: " << again.status().message();
  EXPECT_EQ(ReadBack(**again, 1, 0, 4 * kMiB), Filled(4 * kMiB, 1));
  ASSERT_TRUE((*memory)->StoreWord(1, 8, 17).ok());
  EXPECT_EQ(*(*again)->LoadWord(1, 8), 17u);

  ExpectRefused(Pool::Create(spec, 2).status(), Code::kAlreadyExists, "in use");
  spec.offset = 3 * kMiB;
  ExpectRefused(OpenOnMachine(spec).status(), Code::kInvalidArgument, "offset");
  memory->reset();
  again->reset();
  for (const std::string& path : spec.paths) {
    std::ifstream file(path, std::ios::binary);
    std::string before(2 * kMiB, '\0');
    file.read(before.data(), before.size());
    EXPECT_EQ(before, std::string(2 * kMiB, '\xee')) << path;
  }
}

// Records the coherence mode with which the memory was opened.
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

TEST_F(PersistentDaxMemoryTest, CachesAreAlwaysWrittenBack) {
  if (!FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
  const std::string device = machine_.Add("dax0.0", 4 * kMiB, "2097152");
  auto mode_of = [&](PoolSpec spec, CoherenceMode asked) {
    CoherenceMode mode = CoherenceMode::kUncached;
    spec.coherence = asked;
    spec.make_interposer =
        [&mode](
            const MappedMemory& memory) -> Result<std::unique_ptr<Interposer>> {
      return std::unique_ptr<Interposer>(
          std::make_unique<ModeRecorder>(memory, &mode));
    };
    auto memory = OpenOnMachine(spec);
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    return mode;
  };
  const PoolSpec dax = machine_.Spec({device});
  EXPECT_EQ(mode_of(dax, CoherenceMode::kCoherent), CoherenceMode::kFlush)
      << "lines of a host that dies must be in the memory";
  EXPECT_EQ(mode_of(dax, CoherenceMode::kFlush), CoherenceMode::kFlush);
  const PoolSpec file = FileSpec({machine_ / "a"});
  EXPECT_EQ(mode_of(file, CoherenceMode::kCoherent), CoherenceMode::kCoherent);
  EXPECT_EQ(mode_of(file, CoherenceMode::kFlush), CoherenceMode::kFlush);
}

// Neither the name nor the size of a device shows what it holds. So data
// without the signature must be left alone.
TEST_F(PersistentDaxMemoryTest, DataOfSomethingElseAreLeftAlone) {
  if (!FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
  const std::string path = machine_.Add("dax0.0", 8 * kMiB, "2097152");
  PoolSpec spec = machine_.Spec({path});
  spec.offset = 2 * kMiB;
  ExpectRefused(OpenOnMachine(spec, OpenMode::kNormal).status(),
                Code::kDataLoss, "at byte 2097152");
  spec.offset = 4 * kMiB;  // FakeDax writes the first 3 MiB.
  EXPECT_TRUE(OpenOnMachine(spec, OpenMode::kNormal).ok());
  std::fstream(path, std::ios::in | std::ios::out).seekp(7 * kMiB) << 'x';
  ExpectRefused(OpenOnMachine(spec, OpenMode::kNormal).status(),
                Code::kDataLoss, "at byte 7340032");
  {
    auto formatted = OpenOnMachine(spec, OpenMode::kFormat);
    ASSERT_TRUE(formatted.ok());
    ASSERT_TRUE(
        (*formatted)->Write(0, 0, std::as_bytes(std::span(kSignature))).ok());
  }
  EXPECT_TRUE(OpenOnMachine(spec, OpenMode::kNormal).ok());
}

// A device with a store of 8 MiB at offset 8 MiB, and room on both sides.
class BesideAStoreTest : public PersistentDaxMemoryTest {
 protected:
  void SetUp() override {
    if (!FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
    spec_ = machine_.Spec({machine_.Add("dax0.0", 32 * kMiB, "2097152")});
    spec_.dead_after_s = 0;
    Restore();
  }

  void Restore() {
    fields_ = FakeDax::WriteStore(spec_.paths[0], 8 * kMiB, 8 * kMiB);
  }

  void Write(size_t copy, const SuperblockFields& fields) {
    FakeDax::WriteSuperblock(spec_.paths[0], 8 * kMiB, copy, fields);
  }

  PoolSpec At(uint64_t offset, uint64_t bytes = 8 * kMiB) const {
    PoolSpec spec = spec_;
    spec.offset = offset;
    spec.bytes = bytes;
    return spec;
  }

  Status StoreAt(uint64_t offset, uint64_t bytes, OpenMode mode) {
    return OpenOnMachine(At(offset, bytes), mode).status();
  }

  PoolSpec spec_;
  SuperblockFields fields_;
};

TEST_F(BesideAStoreTest, OthersMayLieOnBothSides) {
  for (const uint64_t offset : {0 * kMiB, 16 * kMiB}) {
    EXPECT_TRUE(Pool::Create(At(offset), 2).ok());
    EXPECT_TRUE(StoreAt(offset, 8 * kMiB, OpenMode::kFormat).ok());
  }
  EXPECT_TRUE(StoreAt(24 * kMiB, 8 * kMiB, OpenMode::kNormal).ok());
}

TEST_F(BesideAStoreTest, OthersMustNotOverlapIt) {
  const std::string where =
      "holds a store at offset 8388608 that ends at 16777216";
  struct Place {
    uint64_t offset, bytes;
  };
  for (const auto& [offset, bytes] :
       {Place(4 * kMiB, 8 * kMiB), Place(12 * kMiB, 8 * kMiB),
        Place(0, 32 * kMiB)}) {
    ExpectRefused(Pool::Create(At(offset, bytes), 2).status(), Code::kDataLoss,
                  where);
    ExpectRefused(StoreAt(offset, bytes, OpenMode::kFormat), Code::kDataLoss,
                  where);
  }
  // The free memory of a store is all zeros.
  ExpectRefused(StoreAt(12 * kMiB, 4 * kMiB, OpenMode::kNormal),
                Code::kDataLoss, where);
  EXPECT_TRUE(StoreAt(8 * kMiB, 8 * kMiB, OpenMode::kFormat).ok())
      << "a store may be formatted again";
}

// Nobody knows where such a store ends.
TEST_F(BesideAStoreTest, ADamagedStoreIsLeftAlone) {
  const auto expect_refused = [&](const std::string& problem) {
    for (const uint64_t offset : {4 * kMiB, 16 * kMiB}) {
      ExpectRefused(Pool::Create(At(offset), 2).status(), Code::kDataLoss,
                    problem);
      ExpectRefused(StoreAt(offset, 8 * kMiB, OpenMode::kFormat),
                    Code::kDataLoss, problem);
    }
    EXPECT_TRUE(Pool::Create(At(0), 2).ok());
    Restore();
  };
  for (const size_t copy : {0, 1}) {
    Write(copy, {});
    expect_refused("with damaged superblocks");
  }
  FakeDax::WriteStore(spec_.paths[0], 8 * kMiB, 32 * kMiB);
  expect_refused("with damaged superblocks");
  fields_.version = kStoreVersion + 1;
  for (const size_t copy : {0, 1}) Write(copy, fields_);
  expect_refused("of another version");
}

// Another process has written only one of the two superblocks.
TEST_F(BesideAStoreTest, AHalfWrittenStoreIsNotDamaged) {
  Write(1, {});
  std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    Write(1, fields_);
  });
  EXPECT_TRUE(Pool::Create(At(16 * kMiB), 2).ok());
}

// Opening an existing store does not depend on its neighbors, even if the store
// has lost a path.
TEST_F(BesideAStoreTest, AnExistingStoreOpensAfterADamagedOne) {
  PoolSpec spec = At(16 * kMiB);
  spec.paths.push_back(machine_.Add("dax1.0", 32 * kMiB, "2097152"));
  {
    auto made = OpenOnMachine(spec, OpenMode::kNormal);
    ASSERT_TRUE(made.ok()) << made.status().message();
    ASSERT_TRUE(
        (*made)->Write(0, 0, std::as_bytes(std::span(kSignature))).ok());
  }
  Write(0, {});
  for (const OpenMode mode : {OpenMode::kExisting, OpenMode::kNormal})
    EXPECT_TRUE(OpenOnMachine(spec, mode).ok());
}

// The memory that a pool has not used yet is all zeros.
TEST_F(PersistentDaxMemoryTest, StoresLeaveLivingPoolsAlone) {
  if (!FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
  PoolSpec spec = machine_.Spec({machine_.Add("dax0.0", 32 * kMiB, "2097152")});
  spec.bytes = 16 * kMiB;
  spec.dead_after_s = 0;
  PoolSpec store = spec;
  store.offset = 8 * kMiB;
  const auto expect_refused = [&](const std::string& sign) {
    for (const OpenMode mode : {OpenMode::kNormal, OpenMode::kFormat})
      ExpectRefused(OpenOnMachine(store, mode).status(), Code::kAlreadyExists,
                    sign);
    ExpectRefused(OpenOnMachine(spec, OpenMode::kFormat).status(),
                  Code::kAlreadyExists, sign);
  };
  std::unique_ptr<Pool> pool;
  {
    Child job([&] {
      auto created = Pool::Create(spec, 2);
      if (created.ok()) pool = *std::move(created);
      return pool != nullptr;
    });
    ASSERT_TRUE(job.ready());
    kill(job.pid(), SIGSTOP);  // Its heartbeat stops.
    expect_refused("which still runs");
  }
  EXPECT_TRUE(OpenOnMachine(store, OpenMode::kNormal).ok());
}

}  // namespace
}  // namespace jax_cxl::pool
