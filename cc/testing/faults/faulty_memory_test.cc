#include "cc/testing/faults/faulty_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cc/comm/record/recorder.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/channel_layout.h"
#include "cc/testing/pool/pool_specs.h"

namespace jax_cxl::fault {
namespace {

// A pool whose only rank has a channel of one slot.
class FaultyMemoryTest : public testing::TestWithParam<pool::CoherenceMode> {
 protected:
  static constexpr uint64_t kSlotBytes = 4096;

  void SetUp() override {
    if (const Status supported = pool::CheckCoherenceSupported(GetParam());
        !supported.ok())
      GTEST_SKIP() << supported.message();
  }

  void Set(const std::string& text) {
    injector_ = std::make_unique<Injector>(*Parse(text), [&] { ++happened_; });
    pool::PoolSpec spec = pool::ShmSpec(pool::UniqueName("faulty"));
    spec.coherence = GetParam();
    injector_->ApplyTo(&spec);
    auto pool = pool::Pool::Create(spec, 1);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    pool_ = *std::move(pool);
    pool::ChannelEntry& entry = pool_->rank_page(0)->channels[0];
    entry.place.control = pool_->arena(0, 0).offset;
    entry.place.payload_bytes = 64;
    entry.place.slot_bytes = kSlotBytes;
    entry.place.num_slots = 1;
    entry.place.slots[0] = entry.place.control + pool::kMiB / 2;
    entry.version = 1;
    slot_ = pool_->base() + entry.place.slots[0];
    block_ = reinterpret_cast<pool::ControlBlock*>(pool_->base() +
                                                   entry.place.control);
    recorder_ = std::make_unique<comm::Recorder>(pool_.get(), 0);
  }
  uint64_t RecordCall() {
    comm::Call call;
    recorder_->Record(&call, /*group=*/1);
    return call.number;
  }
  void Step() { pool_->coherence().PublishPayload(slot_, kSlotBytes); }
  void Ring() {
    pool::Doorbells(pool_->coherence(), pool_->epoch())
        .Ring(&block_->published.word, 1);
  }

  int happened_ = 0;
  std::unique_ptr<Injector> injector_;
  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<comm::Recorder> recorder_;
  std::byte* slot_ = nullptr;
  pool::ControlBlock* block_ = nullptr;
};

TEST_P(FaultyMemoryTest, HappensOnceAtTheGivenPassOfTheGivenCall) {
  Set("rank=0,call=2,point=step,pass=3,action=delay");
  for (uint64_t call = 1; call <= 4; ++call) {
    RecordCall();
    for (int step = 1; step <= 5; ++step) {
      Step();
      EXPECT_EQ(happened_, call > 2 || (call == 2 && step >= 3))
          << call << " " << step;
    }
  }
  EXPECT_EQ(injector_->passes(Point::kStep), 15u);
  EXPECT_EQ(injector_->passes(Point::kSubmit), 3u);
}

TEST_P(FaultyMemoryTest, FollowsTheRecorder) {
  Set("rank=0,call=0,point=start,action=delay");
  const uint64_t number = RecordCall();
  Step();
  EXPECT_EQ(happened_, 0);
  recorder_->Start(number, /*ticks=*/2);
  Step();
  EXPECT_EQ(happened_, 1);
  EXPECT_EQ(injector_->passes(Point::kFinish), 0u);
  recorder_->Finish(number, OkStatus(), /*ticks=*/3);
  Step();
  EXPECT_EQ(injector_->passes(Point::kFinish), 1u);
}

TEST_P(FaultyMemoryTest, CorruptsWhatADoorbellAnnounces) {
  Set("rank=0,call=0,point=ring,action=corrupt");
  Ring();
  const auto* words = reinterpret_cast<const uint64_t*>(&block_->published);
  EXPECT_EQ(words[0] & 0xff, 1u);
  for (int i = 1; i <= 4; ++i) EXPECT_NE(words[i], 0u);
  EXPECT_EQ(words[5], 0u);
}

TEST_P(FaultyMemoryTest, CorruptsTheDoorbell) {
  Set("rank=0,call=0,point=rung,action=corrupt");
  Ring();
  EXPECT_NE(block_->published.word & 0xff, 1u);
  EXPECT_EQ(injector_->passes(Point::kRing), 1u);
  EXPECT_EQ(injector_->passes(Point::kRung), 1u);
}

// Other threads of the process ring the heartbeats, so a heartbeat is not a
// point for faults.
TEST_P(FaultyMemoryTest, HeartbeatsPassUnharmed) {
  Set("rank=0,call=0,point=ring,action=delay");
  pool_->coherence().StoreFlag(&pool_->rank_page(0)->heartbeat.word, 7);
  EXPECT_EQ(happened_, 0);
  EXPECT_EQ(pool_->coherence().LoadFlag(&pool_->rank_page(0)->heartbeat.word),
            7u);
}

INSTANTIATE_TEST_SUITE_P(Modes, FaultyMemoryTest,
                         testing::Values(pool::CoherenceMode::kCoherent,
                                         pool::CoherenceMode::kUncached,
                                         pool::CoherenceMode::kFlush),
                         [](const auto& info) {
                           return std::string(
                               pool::CoherenceModeName(info.param));
                         });

}  // namespace
}  // namespace jax_cxl::fault
