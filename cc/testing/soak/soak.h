#ifndef JAX_CXL_TESTING_SOAK_SOAK_H_
#define JAX_CXL_TESTING_SOAK_SOAK_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/pool/layout/geometry.h"
#include "cc/testing/soak/soak_call.h"
#include "cc/testing/world/world.h"

// Random collectives in random worlds, checked against plain loops.
namespace jax_cxl::comm::soak {

struct Report {
  uint64_t calls = 0;
  uint64_t worlds = 0;
  uint64_t wrong = 0;  // number of wrong elements
  double seconds = 0;
  std::array<uint64_t, plan::kNumOps> by_op{};
  std::array<uint64_t, kNumDTypes> by_dtype{};
  std::string first_failure;  // empty if there is none
};

// A world with a random number of ranks, slots and pool devices, a random
// coherence mode, and some random groups, whose members are in random order.
// Half of the worlds have many groups, but memory for only a few groups at a
// time.
class RandomWorld {
 public:
  RandomWorld(Random& random, const std::optional<Incoherence>& incoherence,
              double timeout_s)
      : ranks_(static_cast<int>(Pick(random, 2, 5))),
        scarce_(random() % 2 == 0),
        devices_(scarce_ ? 1 : static_cast<int>(Pick(random, 1, 4))),
        coherence_(RandomCoherence(random)),
        options_(RandomOptions(random, timeout_s)),
        incoherent_(incoherence.has_value()),
        world_(ranks_, options_, PoolBytes(), devices_, coherence_,
               incoherence) {
    std::vector<int32_t> everyone(ranks_);
    std::iota(everyone.begin(), everyone.end(), 0);
    groups_.push_back(everyone);
    // All groups differ. If memory is scarce, a batch uses up to 30 of them,
    // but a world of two ranks has only four.
    for (int i = 0; i < (scarce_ ? 60 : 3); ++i) {
      std::shuffle(everyone.begin(), everyone.end(), random);
      const auto end = everyone.begin() + Pick(random, 1, ranks_);
      const std::vector<int32_t> group(everyone.begin(), end);
      if (std::ranges::find(groups_, group) == groups_.end())
        groups_.push_back(group);
    }
  }

  // Starts up to `count` calls, each without waiting for earlier ones, and
  // waits for all of them. `calls` receives the calls.
  Status Run(Random& random, int count, std::vector<SoakCall>* calls) {
    const uint64_t large = 3 * options_.slot_bytes * options_.num_slots;
    calls->clear();
    int submissions = 0;
    std::shuffle(groups_.begin(), groups_.end(), random);
    if (scarce_) {
      const size_t phases = groups_.size() / kScarceGroups;
      count = std::min(count, static_cast<int>(phases * kPhase));
    }
    for (int k = 0; k < count; ++k) {
      const size_t first = scarce_ ? k / kPhase * kScarceGroups : 0;
      const size_t most = scarce_ ? kScarceGroups : groups_.size();
      const auto& group = groups_[first + Pick(random, 0, most - 1)];
      calls->emplace_back(random, group, ++identity_,
                          std::min<uint64_t>(large, 50'000));
      submissions += static_cast<int>(group.size());
    }
    Countdown countdown(submissions);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank, seed = random()] {
        StartCalls(Random(seed), rank, *calls, &countdown);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return countdown.Wait();
  }

  std::string Text() const {
    return std::to_string(ranks_) + " ranks, " +
           std::to_string(options_.num_slots) + " slots of " +
           std::to_string(options_.slot_bytes) + " bytes, " +
           std::to_string(devices_) + " devices, " +
           (scarce_ ? "little memory, " : "") +
           (incoherent_ ? "incoherent"
                        : std::string(pool::CoherenceModeName(coherence_)));
  }

 private:
  static pool::CoherenceMode RandomCoherence(Random& random) {
    using Mode = pool::CoherenceMode;
    const auto mode = static_cast<Mode>(Pick(random, 0, 2));
    return pool::CheckCoherenceSupported(mode).ok() ? mode : Mode::kCoherent;
  }

  static Options RandomOptions(Random& random, double timeout_s) {
    constexpr uint64_t kSlotBytes[] = {640, 1024, 4096, 16384, 131072};
    Options options;
    options.timeout_s = timeout_s;
    options.slot_bytes = kSlotBytes[Pick(random, 0, 4)];
    options.num_slots = static_cast<int>(Pick(random, 2, 6));
    if (random() % 2 == 0) options.tuning.past_caches_bytes = 1;
    return options;
  }

  // Starts the calls of one rank. Each rank has an order and pauses of its own.
  void StartCalls(Random random, int rank, std::vector<SoakCall>& calls,
                  Countdown* countdown) {
    std::vector<size_t> order(calls.size());
    std::iota(order.begin(), order.end(), 0);
    // If memory is scarce, ranks shuffle their calls only within a phase. If a
    // rank shuffled calls of more groups than its memory holds, ranks with
    // different orders might wait for each other forever.
    const size_t phase = scarce_ ? kPhase : calls.size();
    if (random() % 2 == 0)
      for (size_t at = 0; at < order.size(); at += phase)
        std::shuffle(order.begin() + at,
                     order.begin() + std::min(at + phase, order.size()),
                     random);
    const bool late = random() % 8 == 0;
    for (size_t k : order) {
      const std::vector<int32_t>& members = calls[k].members();
      const auto self = std::find(members.begin(), members.end(), rank);
      if (self == members.end()) continue;
      if (late && random() % 32 == 0)
        std::this_thread::sleep_for(
            std::chrono::microseconds(Pick(random, 0, 200)));
      countdown->StartCall(
          world_.endpoint(rank), members,
          calls[k].ForMember(static_cast<int>(self - members.begin())));
    }
  }

  // The number of calls in a phase. If memory is scarce, the calls of a phase
  // are in only `kScarceGroups` groups, and no other phase uses these groups: a
  // group with calls of a later phase would keep its memory, and ranks that
  // have kept different groups might wait for each other forever.
  static constexpr size_t kPhase = 20;
  static constexpr size_t kScarceGroups = 3;

  uint64_t PoolBytes() const {
    if (!scarce_) return 64 << 20;
    const uint64_t arenas =
        ranks_ * kScarceGroups * options_.num_slots * options_.slot_bytes;
    return pool::MinimumPoolBytes(ranks_, devices_) +
           pool::RoundUp(arenas, pool::FilePageBytes());
  }

  int ranks_;
  bool scarce_;
  int devices_;
  pool::CoherenceMode coherence_;
  Options options_;
  bool incoherent_;
  World world_;
  std::vector<std::vector<int32_t>> groups_;
  uint64_t identity_ = 0;
};

// Runs `count` collectives. If `seconds` is not 0, stops after this time, but
// not before the first batch is done. The same seed gives the same collectives.
// Stops at the first batch that fails.
inline Report Soak(
    uint64_t count, uint64_t seed, double seconds,
    std::optional<Incoherence> incoherence = Incoherence::FromEnvironment(),
    double timeout_s = 300) {
  constexpr int kBatch = 200, kBatchesPerWorld = 10;
  Report report;
  const Clock::time_point start = Clock::now();
  auto passed = [&] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  // Run the first batch in any case: on a busy machine, making the first world
  // may already take all of the time.
  auto more = [&] {
    const bool in_time =
        seconds <= 0 || report.calls == 0 || passed() < seconds;
    return report.calls < count && in_time && report.first_failure.empty();
  };
  std::vector<SoakCall> calls;
  for (; more(); ++report.worlds) {
    std::seed_seq mixed{seed, seed >> 32, report.worlds};
    Random random(mixed);
    RandomWorld world(random, incoherence, timeout_s);
    if (incoherence) incoherence->seed += 1000;
    for (int batch = 0; batch < kBatchesPerWorld && more(); ++batch) {
      const auto left = std::min<uint64_t>(kBatch, count - report.calls);
      const Status status = world.Run(random, static_cast<int>(left), &calls);
      const std::string where = "world " + std::to_string(report.worlds) +
                                " (" + world.Text() + "), batch " +
                                std::to_string(batch) + ": ";
      if (!status.ok()) {
        report.first_failure = where + std::string(status.message());
        break;
      }
      for (const SoakCall& call : calls) {
        ++report.calls;
        ++report.by_op[static_cast<int>(call.op())];
        ++report.by_dtype[static_cast<int>(call.dtype())];
        const uint64_t wrong = call.CountWrong();
        if (wrong > 0 && report.wrong == 0)
          report.first_failure = where + std::to_string(wrong) +
                                 " wrong elements in " + call.Text();
        report.wrong += wrong;
      }
    }
  }
  report.seconds = passed();
  return report;
}

}  // namespace jax_cxl::comm::soak

#endif  // JAX_CXL_TESTING_SOAK_SOAK_H_
