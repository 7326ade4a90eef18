#ifndef JAX_CXL_TESTING_FAULTS_FAULT_CYCLES_H_
#define JAX_CXL_TESTING_FAULTS_FAULT_CYCLES_H_

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cc/pool/open/shm.h"
#include "cc/testing/faults/fault_job.h"

// Kills whole jobs at random moments, from before the pool exists to the middle
// of a collective. Also finds the files and sockets that these jobs leave
// behind.
namespace jax_cxl::comm::faults {

inline const std::string kCyclePrefix = "cycle.";

// Runs one rank of a job that only SIGKILL ends.
[[noreturn]] inline void RunUntilKilled(const std::string& name, int rank,
                                        int ranks, std::atomic<uint64_t>* token,
                                        std::atomic<int>* registered) {
  pool::PoolSpec spec;
  spec.paths = {name};
  spec.bytes = pool::MinimumPoolBytes(ranks, 1);
  pool::ApplyChoice(&spec);
  std::unique_ptr<pool::Pool> pool;
  if (rank == 0) {
    pool::SweepLeftovers();
    pool = OrDie(pool::Pool::Create(spec, ranks));
    *token = pool->token();
  } else {
    while (*token == 0) sched_yield();
    pool = OrDie(pool::Pool::Attach(spec, ranks, *token));
  }
  Register(pool.get(), rank, rank, rank);
  ++*registered;
  while (*registered < ranks) sched_yield();
  if (rank == 0) pool->Unlink();
  auto peers = OrDie(Peers::Start(pool.get(), {rank}, 5));
  Completions completions;
  Endpoint endpoint(pool.get(), peers.get(), &completions, Options(), rank);
  Case item;
  item.op = plan::Op::kAllReduce;
  item.ranks = ranks;
  std::vector<soak::SoakCall> calls = MakeCalls(item);
  for (uint64_t identity = 1;; ++identity) {
    Countdown countdown(1);
    auto call = calls[identity % kCalls].ForMember(rank);
    call->identity = identity;
    countdown.StartCall(endpoint, calls[0].members(), std::move(call));
    if (!countdown.Wait().ok()) pause();  // until it is killed, too
  }
}

// Starts a job and kills all of its processes after `delay`.
inline void StartAndCrash(uint64_t cycle, int ranks,
                          std::chrono::microseconds delay) {
  struct Meeting {
    std::atomic<uint64_t> token{0};
    std::atomic<int> registered{0};
  };
  void* memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* meeting = new (memory) Meeting;
  const std::string name =
      kCyclePrefix + std::to_string(getpid()) + "." + std::to_string(cycle);
  std::vector<pid_t> pids;
  const pid_t parent = getpid();
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      RunUntilKilled(name, rank, ranks, &meeting->token, &meeting->registered);
    }
    pids.push_back(pid);
  }
  std::this_thread::sleep_for(delay);
  for (pid_t pid : pids) kill(pid, SIGKILL);
  for (pid_t pid : pids) waitpid(pid, nullptr, 0);
  munmap(memory, sizeof(Meeting));
}

struct Leftovers {
  int files = 0;
  int sockets = 0;
  int processes = 0;
  int descriptors = 0;

  bool none() const {
    return files == 0 && sockets == 0 && processes == 0 && descriptors == 0;
  }
};

inline int CountEntries(const std::string& directory,
                        const std::string& prefix) {
  DIR* entries = opendir(directory.c_str());
  if (entries == nullptr) return 0;
  int count = 0;
  while (const dirent* entry = readdir(entries))
    count += std::string(entry->d_name).starts_with(prefix);
  closedir(entries);
  return count;
}

inline int OpenDescriptors() { return CountEntries("/proc/self/fd", ""); }

// Counts the files and sockets on this machine that belong to pools whose names
// start with `prefix`. Also looks for child processes, and counts the
// descriptors that this process has beyond `descriptors_before`.
inline Leftovers FindLeftovers(const std::string& prefix,
                               int descriptors_before) {
  Leftovers left;
  left.descriptors = OpenDescriptors() - descriptors_before;
  left.files = CountEntries(std::string(pool::kShmDirectory),
                            std::string(pool::kShmPrefix) + prefix);
  const std::string socket =
      std::string(pool::kShmPrefix) + std::to_string(geteuid()) + "." + prefix;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);)
    left.sockets += line.find("@" + socket) != line.npos;
  left.processes =
      waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD ? 0 : 1;
  return left;
}

}  // namespace jax_cxl::comm::faults

#endif  // JAX_CXL_TESTING_FAULTS_FAULT_CYCLES_H_
