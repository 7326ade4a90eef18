// Sanitizers: address, thread

// Tests memory on CXL devices that outlives its jobs.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cc/pool/coherence/cache.h"
#include "cc/pool/persistent/persistent_memory.h"
#include "cc/pool/pool.h"
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
    return PersistentMemory::Open(spec, TestSignature(), mode);
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
    const std::string magic = TestSignature().magic;
    ASSERT_TRUE(
        (*formatted)->Write(0, 0, std::as_bytes(std::span(magic))).ok());
  }
  EXPECT_TRUE(OpenOnMachine(spec, OpenMode::kNormal).ok());
}

TEST_F(PersistentDaxMemoryTest, PoolsLeaveSnapshotsAlone) {
  if (!FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
  PoolSpec spec = machine_.Spec({machine_.Add("dax0.0", 16 * kMiB, "2097152")});
  spec.dead_after_s = 0;
  PoolSpec kept = spec;
  kept.offset = 8 * kMiB;
  const std::span magic = std::as_bytes(std::span(kSnapshotsMagic));
  for (const uint64_t at : kSnapshotsMagicOffsets) {
    {
      auto memory = OpenOnMachine(kept);
      ASSERT_TRUE(memory.ok());
      ASSERT_TRUE((*memory)->Write(0, at, magic).ok());
    }
    ExpectRefused(Pool::Create(spec, 2).status(), Code::kDataLoss,
                  "holds a store at offset 8388608");
    auto memory = OpenOnMachine(kept);
    ASSERT_TRUE((*memory)->Write(0, at, Bytes(magic.size())).ok());
  }
  spec.bytes = 8 * kMiB;
  EXPECT_TRUE(Pool::Create(spec, 2).ok());
}

}  // namespace
}  // namespace jax_cxl::pool
