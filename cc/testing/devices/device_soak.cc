#include "cc/testing/devices/device_soak.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cc/testing/devices/model_rank.h"
#include "cc/testing/devices/shared_call.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm::soak {
namespace {

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
    const ModelSetting setting(random);
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
