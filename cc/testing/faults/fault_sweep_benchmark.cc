// Tests every fault at every point of every operation, and jobs that are killed
// as a whole. Prints the results as JSON. Exits with 0 if there was no hang, no
// crash, no wrong value and no wrong error, and if nothing was left behind.
//
// fault_sweep_benchmark [--seed=S] [--random_times=30] [--cycles=1000]
//                       [--workers=4]
//
// Each operation runs in jobs of 2, 3 and 4 processes, and in each job each
// process is the victim once. The victim is killed at every pass through every
// point. At one pass of each point, it is stopped, ended, delayed, or made to
// corrupt memory. Finally it is killed or stopped from outside at
// `random_times` random times.

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/testing/faults/fault_cycles.h"
#include "cc/testing/faults/fault_sweep.h"

namespace jax_cxl::comm::faults {
namespace {

struct Flags {
  uint64_t seed = std::random_device()();
  int random_times = 30;
  int cycles = 1000;
  int workers = 4;
};

const char* Value(const char* argument, const char* flag) {
  const size_t length = std::strlen(flag);
  return std::strncmp(argument, flag, length) == 0 ? argument + length
                                                   : nullptr;
}

bool ParseFlags(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    if (const char* value = Value(argv[i], "--seed="))
      flags->seed = std::strtoull(value, nullptr, 10);
    else if (const char* value = Value(argv[i], "--random_times="))
      flags->random_times = std::atoi(value);
    else if (const char* value = Value(argv[i], "--cycles="))
      flags->cycles = std::atoi(value);
    else if (const char* value = Value(argv[i], "--workers="))
      flags->workers = std::max(std::atoi(value), 1);
    else
      return false;
  }
  return true;
}

struct Victim {
  plan::Op op;
  int ranks;
  int rank;
};

std::vector<Victim> AllVictims() {
  std::vector<Victim> victims;
  for (int op = 0; op < plan::kNumOps; ++op)
    for (int ranks = 2; ranks <= kMaxRanks; ++ranks)
      for (int rank = 0; rank < ranks; ++rank)
        victims.push_back({static_cast<plan::Op>(op), ranks, rank});
  return victims;
}

Tally Sweep(const Flags& flags) {
  const std::vector<Victim> victims = AllVictims();
  const Coverage coverage = {.every_pass = true,
                             .all_actions = true,
                             .random_times = flags.random_times};
  Tally total;
  std::mutex mutex;
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i; (i = next++) < victims.size();) {
      const auto [op, ranks, rank] = victims[i];
      std::seed_seq seeds{flags.seed, flags.seed >> 32, uint64_t{i}};
      soak::Random random(seeds);
      Tally tally;
      for (const Case& item : CasesOf(op, ranks, rank, coverage, random))
        RunCase(item, &tally);
      std::lock_guard lock(mutex);
      total.Add(tally);
      std::fprintf(stderr, "%zu of %zu victims, %llu faults\n", i + 1,
                   victims.size(),
                   static_cast<unsigned long long>(total.reached));
    }
  };
  std::vector<std::thread> workers;
  for (int i = 0; i < flags.workers; ++i) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  return total;
}

void Cycles(const Flags& flags) {
  soak::Random random(flags.seed);
  for (int cycle = 0; cycle < flags.cycles; ++cycle)
    StartAndCrash(cycle, 2 + cycle % 3,
                  std::chrono::microseconds(soak::Pick(random, 0, 20'000)));
}

void PrintLeftovers(const char* key, const Leftovers& left) {
  std::printf(
      "  \"%s\": {\"files\": %d, \"sockets\": %d, \"processes\": %d, "
      "\"descriptors\": %d},\n",
      key, left.files, left.sockets, left.processes, left.descriptors);
}

template <typename Counts, typename Name>
void PrintCounts(const char* key, const Counts& counts, Name name) {
  std::printf("  \"%s\": {", key);
  for (size_t i = 0; i < counts.size(); ++i)
    std::printf("%s\"%s\": %llu", i == 0 ? "" : ", ",
                std::string(name(i)).c_str(),
                static_cast<unsigned long long>(counts[i]));
  std::printf("},\n");
}

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

void PrintTally(const Tally& tally) {
  auto print = [](const char* key, uint64_t value) {
    std::printf("  \"%s\": %llu,\n", key,
                static_cast<unsigned long long>(value));
  };
  print("jobs", tally.cases);
  print("faults", tally.reached);
  PrintCounts("faults_by_action", tally.by_action, [](size_t i) {
    return fault::ActionName(static_cast<fault::Action>(i));
  });
  PrintCounts("faults_by_point", tally.by_point, [](size_t i) {
    return fault::PointName(static_cast<fault::Point>(i));
  });
  print("faults_at_random_times", tally.at_random_times);
  print("survivors_with_the_right_error", tally.survivors_with_error);
  print("survivors_that_finished", tally.survivors_done);
  print("hangs", tally.hangs);
  print("crashes", tally.crashes);
  print("wrong_elements", tally.wrong);
  print("misleading_errors", tally.misjudged);
  print("later_than_1_s", tally.late);
  std::vector<double> times = tally.detection_s;
  std::sort(times.begin(), times.end());
  if (times.empty()) return;
  auto quantile = [&](double q) {
    return 1e3 * times[static_cast<size_t>(q * (times.size() - 1))];
  };
  std::printf(
      "  \"death_to_error_ms\": {\"deaths_noticed\": %zu, \"p50\": %.3f, "
      "\"p90\": %.3f, \"p99\": %.3f, \"p99.9\": %.3f, \"max\": %.3f},\n",
      times.size(), quantile(0.5), quantile(0.9), quantile(0.99),
      quantile(0.999), quantile(1));
}

int Main(const Flags& flags, const std::string& command) {
  const double start = Now();
  const int descriptors = OpenDescriptors();
  utsname system = {};
  uname(&system);
  std::printf(
      "{\n  \"machine\": {\"cpu\": \"%s\", \"cores\": %ld, \"kernel\": "
      "\"%s\"},\n  \"versions\": {\"compiler\": \"%s\"},\n  \"emulated\": "
      "true,\n  \"command\": \"%s\",\n  \"seed\": %llu,\n",
      CpuModel().c_str(), sysconf(_SC_NPROCESSORS_ONLN), system.release,
      __VERSION__, command.c_str(),
      static_cast<unsigned long long>(flags.seed));
  const Tally tally = Sweep(flags);
  PrintTally(tally);
  const Leftovers after_faults = FindLeftovers(kFaultPrefix, descriptors);
  PrintLeftovers("left_after_faults", after_faults);

  Cycles(flags);
  const int unswept = FindLeftovers(kCyclePrefix, descriptors).files;
  pool::SweepLeftovers();
  const Leftovers after_cycles = FindLeftovers(kCyclePrefix, descriptors);
  std::printf("  \"start_crash_cycles\": %d,\n", flags.cycles);
  std::printf("  \"files_before_the_next_job_swept\": %d,\n", unswept);
  PrintLeftovers("left_after_cycles", after_cycles);
  std::printf("  \"seconds\": %.1f\n}\n", Now() - start);
  for (const std::string& failure : tally.failures)
    std::fprintf(stderr, "%s\n", failure.c_str());
  return tally.good() && after_faults.none() && after_cycles.none() ? 0 : 1;
}

}  // namespace
}  // namespace jax_cxl::comm::faults

int main(int argc, char** argv) {
  jax_cxl::comm::faults::Flags flags;
  if (!jax_cxl::comm::faults::ParseFlags(argc, argv, &flags)) {
    std::fprintf(stderr,
                 "usage: %s [--seed=S] [--random_times=N] [--cycles=N] "
                 "[--workers=N]\n",
                 argv[0]);
    return 2;
  }
  std::string command = "fault_sweep_benchmark";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return jax_cxl::comm::faults::Main(flags, command);
}
