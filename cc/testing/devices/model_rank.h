#ifndef JAX_CXL_TESTING_DEVICES_MODEL_RANK_H_
#define JAX_CXL_TESTING_DEVICES_MODEL_RANK_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/comm/call/backoff.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/connect/directory.h"
#include "cc/engine/gpu_plan/flagged_ring.h"
#include "cc/gpu/relay/relay.h"
#include "cc/plan/planners/make_plan.h"
#include "cc/testing/devices/flagged_device.h"
#include "cc/testing/devices/model_device.h"
#include "cc/testing/devices/shared_call.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm::soak {

// A rank: its channel, its host's relay and its device.
class ModelRank {
 public:
  ModelRank(World& world, const ModelSetting& setting, int rank, uint64_t seed)
      : pool_(world.pool(rank)),
        setting_(setting),
        rank_(rank),
        doorbells_(pool_.coherence(), pool_.epoch()),
        device_(pool::DeviceCopies(pool_), seed),
        flagged_device_(pool::DeviceCopies(pool_), seed,
                        setting.first_flagged_round),
        mirror_(std::make_unique<cuda::MirrorWords[]>(setting.ranks)),
        flagged_rounds_(setting.first_flagged_round) {
    const Group group = {SharedCall::Everyone(setting.ranks), rank};
    place_ = OrDie(AllocateChannel(pool_, world.endpoint(rank).arena(), group,
                                   kKey, setting.slots, kControlBytes));
    if (setting.writes_memory) pool::DeviceCopies(pool_).WriteMemory();
  }

  // Fills this rank's ring with flags of its first rounds, as an earlier
  // channel in the same memory may have left them.
  void LeaveOldFlags() {
    auto& vectors = Control(*this).flagged.vectors;
    for (uint64_t round = flagged_rounds_;
         round < flagged_rounds_ + cuda::kFlaggedSlots; ++round) {
      std::byte* slot = vectors[cuda::flagged::SlotOf(round)];
      const uint64_t word = uint64_t{cuda::flagged::FlagOf(round)} << 32 | 0xdd;
      for (uint64_t at = 0; at < 2 * kFlaggedBytes; at += sizeof(word))
        std::memcpy(slot + at, &word, sizeof(word));
    }
    pool_.coherence().PublishPayload(vectors, sizeof(vectors));
  }
  void CacheOldFlags(const ModelRank& peer) {
    auto& ring = Control(peer).flagged;
    pool_.coherence().AcquirePayload(&ring, sizeof(ring));
  }

  void Open() {
    cuda::DeviceControl& control = Control(*this);
    std::memset(&control.flagged, 0, sizeof(control.flagged));
    pool_.coherence().PublishPayload(&control.flagged, sizeof(control.flagged));
    doorbells_.Ring(&control.send[0].published, 0);
    doorbells_.Ring(&control.released[0].word, 0);
    doorbells_.Ring(&control.ended.word, 0);
    OrDie(EnterChannel(&pool_, doorbells_,
                       {SharedCall::Everyone(setting_.ranks), rank_}, place_));
  }

  void Connect() {
    std::vector<cuda::DeviceControl*> in_pool;
    std::vector<cuda::MirrorWords*> mirror;
    std::vector<cuda::FlaggedControl*> rings;
    for (int member = 0; member < setting_.ranks; ++member) {
      std::optional<FoundChannel> found;
      while (!(found = OrDie(FindChannel(pool_, doorbells_, member, place_,
                                         kControlBytes, "a model's peer"))))
        std::this_thread::yield();
      in_pool.push_back(reinterpret_cast<cuda::DeviceControl*>(found->control));
      mirror.push_back(&mirror_[member]);
      cuda::MemberView view = {};
      std::ranges::copy(found->slots, view.slots);
      rings.push_back(&in_pool.back()->flagged);
      view.flagged = rings.back();
      members_.push_back(cuda::Mirrored(view, &mirror_[member]));
    }
    rings_.emplace(doorbells_, std::move(rings), rank_);
    rings_->DropPeers();
    channel_ = std::make_unique<ChannelRelay>(
        doorbells_, !setting_.writes_memory, in_pool, mirror, *rings_, rank_);
    if (setting_.counted) {
      RelayedCall common;
      common.members = members_.data();
      common.num_words = common.blocks = kModelBlocks;
      common.num_slots = setting_.kernels.num_slots;
      common.unit_bytes = setting_.stripes.unit_bytes;
      common.slot_step = setting_.stripes.slot_step;
      entries_ = std::make_unique<cuda::JournalEntry[]>(cuda::kJournal);
      journal_.emplace(doorbells_, entries_.get(), Control(*this).journal,
                       std::move(common));
      channel_->Follow(&*journal_);
    }
    relay_ = std::make_unique<Relay>(pool_.coherence(), setting_.threads,
                                     Tuning().flush_piece_bytes);
    // By then, the threads of half of the relays sleep.
    if (rank_ % 2 == 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    relay_->Add(channel_.get());
  }

  // Executes calls. Enqueues some calls on the relay before the device reaches
  // them, as a stream does. Returns the first problem, or "" if there is none.
  std::string Run(std::vector<SharedCall>& calls, uint64_t seed,
                  const std::atomic<bool>& stop) {
    Random random(seed);
    std::vector<Prepared> prepared;
    for (SharedCall& call : calls) prepared.push_back(Prepare(call));
    size_t enqueued = 0;
    for (size_t first = 0; first < prepared.size();) {
      if (prepared[first].begins_anew) {
        std::string wrong = AwaitRelay(stop);
        if (!wrong.empty()) return wrong;
        if (!rings_->BeginAnew(prepared[first].model.base_round - 1,
                               [&] { return !stop; }))
          return "stopped";
      }
      std::vector<ModelCall> series;
      const bool flagged = prepared[first].relayed.flagged;
      do series.push_back(prepared[first++].model);
      while (first < prepared.size() && prepared[first].relayed.follows_on);
      if (setting_.counted) WriteEntry(prepared[first - 1]);
      for (; enqueued < first ||
             (enqueued < prepared.size() && random() % 2 == 0 &&
              !prepared[enqueued].begins_anew);
           ++enqueued) {
        if (setting_.counted) continue;
        channel_->Enqueue(prepared[enqueued].relayed);
        relay_->Wake();
      }
      std::string wrong = flagged
                              ? flagged_device_.Execute(series.front(), stop)
                              : device_.Execute(series, stop);
      if (!wrong.empty()) return wrong;
    }
    return AwaitRelay(stop);
  }

  void Stop() { channel_->Stop(); }

 private:
  static constexpr uint64_t kKey = 0x6d6f64656c000000;
  static constexpr uint64_t kControlBytes = sizeof(cuda::DeviceControl);
  // The size of the longest calls with flags here. Longer calls would take more
  // time, but would not test anything more.
  static constexpr uint64_t kFlaggedBytes = 8 << 10;

  struct Prepared {
    std::unique_ptr<Call> call;
    std::unique_ptr<cuda::GpuPlan> gpu_plan;
    ModelCall model;
    RelayedCall relayed;
    uint32_t kind = 0;         // DeviceJournal::Add
    bool begins_anew = false;  // flags do, before this call
  };

  void WriteEntry(const Prepared& prepared) {
    const uint64_t call = prepared.model.call;
    cuda::JournalEntry& entry = entries_[call % cuda::kJournal];
    entry.site = prepared.kind;
    entry.descriptor.details = prepared.kind;
    __atomic_store_n(&entry.ready, doorbells_.Word(call + 1), __ATOMIC_RELEASE);
  }

  std::string AwaitRelay(const std::atomic<bool>& stop) const {
    Backoff backoff;
    while (setting_.counted ? channel_->ended() < calls_ : !channel_->idle()) {
      if (stop) return "the relay does not end";
      backoff.Pause();
    }
    return "";
  }

  // Returns the control block of `rank`, as this rank's host sees the pool.
  cuda::DeviceControl& Control(const ModelRank& rank) {
    return *reinterpret_cast<cuda::DeviceControl*>(
        pool_.At(rank.place_.control, kControlBytes));
  }

  // Returns the plan with which the call sends flags with its data, or null if
  // the call cannot use flags.
  static std::unique_ptr<cuda::GpuPlan> FlaggedPlan(
      const plan::Request& request) {
    if (!plan::IsFlagged(request, kFlaggedBytes)) return nullptr;
    auto gpu_plan = std::make_unique<cuda::GpuPlan>(OrDie(cuda::MakeGpuPlan(
        OrDie(
            plan::MakePlan(request, plan::FlaggedGeometry(request.num_ranks))),
        request.rank, cuda::Stripes{1, 16})));
    return cuda::flagged::Fits(*gpu_plan) ? std::move(gpu_plan) : nullptr;
  }

  Prepared Prepare(SharedCall& shared) {
    Prepared made;
    made.call = shared.call.ForMember(rank_);
    if (shared.flagged) made.gpu_plan = FlaggedPlan(made.call->request);
    const bool flagged = made.gpu_plan != nullptr;
    cuda::Stripes stripes = setting_.stripes;
    if (!shared.by_copies) stripes.num_blocks = shared.num_words;
    if (!flagged)
      made.gpu_plan = std::make_unique<cuda::GpuPlan>(OrDie(cuda::MakeGpuPlan(
          OrDie(plan::MakePlan(made.call->request, shared.geometry)), rank_,
          stripes)));
    ModelCall& model = made.model;
    model.gpu_plan = made.gpu_plan.get();
    model.members = members_;
    model.self = rank_;
    model.num_words = shared.num_words;
    model.words_take_turns = shared.by_copies;
    model.awaits_end =
        !flagged && !shared.by_copies && std::exchange(copied_, false);
    copied_ |= shared.by_copies;
    model.num_slots = shared.geometry.num_slots;
    model.stripes = stripes;
    if (flagged) {
      made.begins_anew = cuda::flagged::BeginsAnew(flagged_rounds_);
      if (made.begins_anew) ++flagged_rounds_;
    }
    model.base_round = flagged ? flagged_rounds_++ : rounds_;
    if (!shared.follows_on) series_begin_ = rounds_;
    model.series_begin = series_begin_;
    model.call = calls_++;
    model.hash = model.call * 77 + static_cast<int>(shared.call.op());
    model.epoch = pool_.epoch();
    model.input = made.call->input;
    model.output = made.call->output;
    model.dtype = made.call->dtype;
    model.reduce_op = made.call->reduce_op;
    if (!flagged) rounds_ += made.gpu_plan->rounds;

    RelayedCall& relayed = made.relayed;
    relayed.plan = std::make_shared<const RelayPlan>(
        MakeRelayPlan(*made.gpu_plan, setting_.ranks, rank_));
    relayed.flagged = flagged;
    relayed.members = members_.data();
    relayed.num_words = model.num_words;
    relayed.words_take_turns = model.words_take_turns;
    relayed.num_slots = model.num_slots;
    relayed.unit_bytes = stripes.unit_bytes;
    relayed.blocks = stripes.num_blocks;
    relayed.slot_step = shared.by_copies ? 0 : stripes.slot_step;
    relayed.base_round = model.base_round;
    relayed.call = model.call;
    relayed.hash = model.hash;
    relayed.awaited_end = model.words_take_turns ? model.series_begin
                          : model.awaits_end     ? model.base_round
                                                 : 0;
    relayed.follows_on = shared.follows_on;
    if (setting_.counted) {
      const uint64_t descriptor_hash = model.hash;
      made.kind = journal_->Add(*relayed.plan, descriptor_hash);
      hash_ = cuda::ChainHash(hash_, descriptor_hash);
      model.hash = hash_;
    }
    return made;
  }

  pool::Pool& pool_;
  const ModelSetting& setting_;
  const int rank_;
  const pool::Doorbells doorbells_;
  ModelDevice device_;
  FlaggedDevice flagged_device_;
  pool::ChannelPlace place_ = {};
  std::unique_ptr<cuda::MirrorWords[]> mirror_;
  std::unique_ptr<cuda::JournalEntry[]> entries_;  // if the device writes them
  std::optional<DeviceJournal> journal_;
  uint64_t hash_ = 0;  // of the calls in the journal
  std::vector<cuda::MemberView> members_;
  std::unique_ptr<ChannelRelay> channel_;
  std::unique_ptr<Relay> relay_;
  std::optional<FlaggedRings> rings_;
  uint64_t rounds_ = 0;
  uint64_t flagged_rounds_;
  uint64_t series_begin_ = 0;  // rounds before the last series
  uint64_t calls_ = 0;
  bool copied_ = false;
};

}  // namespace jax_cxl::comm::soak

#endif  // JAX_CXL_TESTING_DEVICES_MODEL_RANK_H_
