#include "cc/testing/devices/device_soak.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
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
#include "cc/testing/soak/soak_call.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm::soak {
namespace {

using cuda::DeviceControl;

constexpr uint64_t kKey = 0x6d6f64656c000000;
constexpr uint64_t kControlBytes = sizeof(DeviceControl);
constexpr uint32_t kBlocks = 4;
// The size of the longest calls with flags here. Longer calls would take more
// time, but would not test anything more.
constexpr uint64_t kFlaggedBytes = 8 << 10;

// Settings that all ranks of a world share.
struct Setting {
  int ranks;
  int devices;
  int threads;  // of each relay
  bool writes_memory;
  bool counted;  // the devices number the calls (DeviceJournal)
  uint64_t first_flagged_round;
  plan::Geometry slots;
  plan::Geometry kernels;
  cuda::Stripes stripes;

  explicit Setting(Random& random)
      : ranks(static_cast<int>(Pick(random, 2, 4))),
        devices(random() % 4 == 0 ? 3 : 1),
        threads(static_cast<int>(Pick(random, 1, 3))),
        writes_memory(random() % 3 == 0),
        counted(random() % 3 == 0),
        // Flags are round numbers of 32 bits. In half of the worlds they begin
        // at 0. In the others they begin near their largest value, so that they
        // start again at 0 after some calls.
        first_flagged_round(
            random() % 2 == 0 ? 0 : UINT32_MAX - Pick(random, 2, 12)) {
    slots.num_slots = static_cast<int>(Pick(random, 3, 6));
    slots.num_devices = devices;
    slots.slot_bytes = uint64_t{4096} << Pick(random, 0, 2);
    slots.all_read_bytes = random() % 2 == 0 ? 0 : 8192;
    slots.min_chunk_bytes = random() % 2 == 0 ? 0 : 1024;
    stripes = plan::GpuStripes(slots.slot_bytes, devices, ranks, kBlocks);
    slots.part_alignment = stripes.period();
    kernels = slots;
    if (stripes.slot_step > 0) kernels.device_parts = kBlocks;
  }
};

// One call, with the choices that are the same for all ranks.
struct SharedCall {
  SoakCall call;
  bool by_copies;
  bool flagged;  // if its plan allows it
  uint32_t num_words;
  plan::Geometry geometry;
  bool follows_on;  // it is in the series of the previous call

  // `last` is the previous call, or null.
  SharedCall(Random& random, const Setting& setting, uint64_t number,
             const SharedCall* last)
      : call(random, Everyone(setting.ranks), number, 40'000, RandomOp(random)),
        by_copies(!setting.counted && random() % 2 == 0),
        flagged(!setting.counted && !by_copies && random() % 2 == 0),
        num_words(by_copies         ? Pick(random, 1, 2)
                  : setting.counted ? kBlocks
                                    : 1u << Pick(random, 0, 2)),
        geometry(by_copies ? setting.slots : setting.kernels) {
    if (by_copies && random() % 2 == 0)
      geometry.num_slots = std::max(geometry.num_slots - 1, 2);
    if (!by_copies && setting.stripes.slot_step > 0) num_words = kBlocks;
    follows_on = last != nullptr && last->by_copies && random() % 3 > 0;
    if (!follows_on) return;
    by_copies = true;
    flagged = false;
    num_words = last->num_words;
    geometry = last->geometry;
  }

  // Never returns an operation that moves rows: its plan moves all rows, and
  // only the real executors know which rows to leave out.
  static plan::Op RandomOp(Random& random) {
    while (true) {
      const auto op = static_cast<plan::Op>(Pick(random, 0, plan::kNumOps - 1));
      if (plan::TraitsOf(op).output != plan::Blocks::kRows) return op;
    }
  }

  static std::vector<int32_t> Everyone(int ranks) {
    std::vector<int32_t> everyone(ranks);
    std::iota(everyone.begin(), everyone.end(), 0);
    return everyone;
  }
};

// A rank: its channel, its host's relay and its device.
class ModelRank {
 public:
  ModelRank(World& world, const Setting& setting, int rank, uint64_t seed)
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
    DeviceControl& control = Control(*this);
    std::memset(&control.flagged, 0, sizeof(control.flagged));
    pool_.coherence().PublishPayload(&control.flagged, sizeof(control.flagged));
    doorbells_.Ring(&control.send[0].published, 0);
    doorbells_.Ring(&control.released[0].word, 0);
    doorbells_.Ring(&control.ended.word, 0);
    OrDie(EnterChannel(&pool_, doorbells_,
                       {SharedCall::Everyone(setting_.ranks), rank_}, place_));
  }

  void Connect() {
    std::vector<DeviceControl*> in_pool;
    std::vector<cuda::MirrorWords*> mirror;
    std::vector<cuda::FlaggedControl*> rings;
    for (int member = 0; member < setting_.ranks; ++member) {
      std::optional<FoundChannel> found;
      while (!(found = OrDie(FindChannel(pool_, doorbells_, member, place_,
                                         kControlBytes, "a model's peer"))))
        std::this_thread::yield();
      in_pool.push_back(reinterpret_cast<DeviceControl*>(found->control));
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
      common.num_words = common.blocks = kBlocks;
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
  DeviceControl& Control(const ModelRank& rank) {
    return *reinterpret_cast<DeviceControl*>(
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
  const Setting& setting_;
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

// Runs a batch of calls on all ranks. Returns the first problem, or "" if there
// is none.
std::string RunBatch(std::vector<std::unique_ptr<ModelRank>>& ranks,
                     std::vector<SharedCall>& calls, Random& random,
                     double timeout_s) {
  std::atomic<bool> stop{false};
  std::atomic<int> left{static_cast<int>(ranks.size())};
  std::mutex mutex;
  std::string first;
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&, seed = random()] {
      std::string wrong = rank->Run(calls, seed, stop);
      --left;
      if (wrong.empty()) return;
      stop = true;
      std::lock_guard lock(mutex);
      if (first.empty()) first = wrong;
    });
  }
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
  while (left > 0 && !stop && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (left > 0 && !stop) {
    std::lock_guard lock(mutex);
    first = "a call hangs";
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (auto& rank : ranks)
    if (!first.empty()) rank->Stop();
  if (!first.empty()) return first;
  for (const SharedCall& call : calls)
    if (const uint64_t wrong = call.call.CountWrong(); wrong > 0)
      return std::to_string(wrong) + " wrong elements in " + call.call.Text() +
             (call.by_copies ? ", by copies"
              : call.flagged ? ", by a kernel with flags if it can"
                             : ", by a kernel");
  return "";
}

}  // namespace

DeviceSoakReport DeviceSoak(uint64_t seed, double seconds,
                            const std::optional<pool::Incoherence>& incoherence,
                            double timeout_s) {
  constexpr int kBatch = 10, kBatches = 10;
  DeviceSoakReport report;
  Random random(seed);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end && report.first_failure.empty()) {
    const Setting setting(random);
    std::optional<pool::Incoherence> hosts = incoherence;
    if (hosts) hosts->seed += 1000 * report.worlds;
    World world(setting.ranks, Options{}, 16 << 20, setting.devices,
                pool::CoherenceMode::kFlush, hosts);
    std::vector<std::unique_ptr<ModelRank>> ranks;
    for (int rank = 0; rank < setting.ranks; ++rank)
      ranks.push_back(
          std::make_unique<ModelRank>(world, setting, rank, random()));
    for (auto& rank : ranks) rank->LeaveOldFlags();
    for (auto& rank : ranks)
      for (auto& peer : ranks)
        if (rank != peer) rank->CacheOldFlags(*peer);
    for (auto& rank : ranks) rank->Open();
    for (auto& rank : ranks) rank->Connect();
    ++report.worlds;
    uint64_t number = 0;
    // Run at least one batch, even if the machine was slow until here.
    for (int batch = 0; batch < kBatches && (batch == 0 || Clock::now() < end);
         ++batch) {
      std::vector<SharedCall> calls;
      for (int i = 0; i < kBatch; ++i)
        calls.emplace_back(random, setting, ++number,
                           calls.empty() ? nullptr : &calls.back());
      report.first_failure = RunBatch(ranks, calls, random, timeout_s);
      if (!report.first_failure.empty()) {
        report.first_failure +=
            " (world " + std::to_string(report.worlds) + ", batch " +
            std::to_string(batch) + ", " + std::to_string(setting.ranks) +
            " ranks, " + std::to_string(setting.devices) + " pool devices, " +
            std::to_string(setting.threads) + " threads" +
            (setting.counted ? ", counted" : "") +
            (setting.writes_memory ? ", devices write memory)" : ")");
        break;
      }
      report.calls += calls.size();
    }
  }
  return report;
}

}  // namespace jax_cxl::comm::soak
