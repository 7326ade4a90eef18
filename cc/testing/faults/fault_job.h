#ifndef JAX_CXL_TESTING_FAULTS_FAULT_JOB_H_
#define JAX_CXL_TESTING_FAULTS_FAULT_JOB_H_

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/comm/completions.h"
#include "cc/comm/endpoint.h"
#include "cc/comm/health/peers.h"
#include "cc/pool/pool.h"
#include "cc/testing/faults/fault.h"
#include "cc/testing/faults/faulty_memory.h"
#include "cc/testing/soak/soak_call.h"
#include "cc/testing/world/world.h"

// A small job of real processes. One of them has a fault. The result shows what
// each process saw.
namespace jax_cxl::comm::faults {

inline constexpr int kMaxRanks = 4;
inline constexpr int kCalls = 3;
inline const std::string kFaultPrefix = "fault.";  // prefix of pools' names

inline double Now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// The fault of one rank in a job that runs kCalls collectives.
struct Case {
  plan::Op op = plan::Op::kBarrier;
  int ranks = 2;
  uint64_t seed = 1;  // of the collectives
  fault::Fault fault;
  // If set, the fault is a signal that the parent process sends, this many
  // seconds after all ranks have registered. The fault's point then has no
  // meaning.
  std::optional<double> at_s;
  // If set, a stopped rank continues after this time. Otherwise it stays
  // stopped until all other ranks have ended.
  std::optional<double> resume_after_s;
  double warn_after_s = 0.1;
  double timeout_s = 0.4;
};

inline std::string Text(const Case& item) {
  std::string text = std::string(plan::OpName(item.op)) + ", " +
                     std::to_string(item.ranks) + " ranks, seed " +
                     std::to_string(item.seed) + ", ";
  if (!item.at_s) return text + fault::Text(item.fault);
  return text + std::string(fault::ActionName(item.fault.action)) + " rank " +
         std::to_string(item.fault.rank) + " after " +
         std::to_string(*item.at_s) + " s";
}

struct RankResult {
  pid_t pid = 0;
  bool reported = false;  // finished its calls, or got an error
  Code code = Code::kOk;
  uint64_t wrong = 0;   // wrong elements of calls that succeeded
  double ended_at = 0;  // when the last call was done
  std::array<uint64_t, fault::kNumPoints> passes{};
  char message[2000] = {};
  // The parent process sets the following fields.
  int status = 0;  // from waitpid
  bool hung = false;
};

struct JobResult {
  std::vector<RankResult> ranks;
  double fault_at = 0;  // 0: the point was never reached
  std::string output;   // what the ranks wrote to stderr
  double seconds = 0;
};

// The memory that the processes of a job share besides the pool.
struct Shared {
  std::atomic<uint64_t> token{0};  // of the pool, once it exists
  std::atomic<int> registered{0};
  std::atomic<double> fault_at{0};
  RankResult results[kMaxRanks];
};

inline std::vector<soak::SoakCall> MakeCalls(const Case& item) {
  std::vector<int32_t> members(item.ranks);
  std::iota(members.begin(), members.end(), 0);
  soak::Random random(item.seed);
  std::vector<soak::SoakCall> calls;
  for (int i = 0; i < kCalls; ++i)
    calls.emplace_back(random, members, i + 1, 8000, item.op);
  return calls;
}

// Makes the calls of one rank, in the rank's process.
inline void RunRank(const Case& item, int rank, pool::Pool* pool,
                    Shared* shared) {
  RankResult& result = shared->results[rank];
  Options options;
  options.slot_bytes = 1024;  // a call uses each slot several times
  options.num_slots = 2;
  options.warn_after_s = item.warn_after_s;
  options.timeout_s = item.timeout_s;
  std::vector<soak::SoakCall> calls = MakeCalls(item);
  Register(pool, rank, rank, rank);
  ++shared->registered;
  while (shared->registered < item.ranks) sched_yield();

  auto peers = OrDie(Peers::Start(pool, {rank}, options.heartbeat_timeout_s));
  Completions completions;
  Endpoint endpoint(pool, peers.get(), &completions, options, rank);
  Status status;
  // Starts the first call alone, and the other calls together when it is done.
  for (auto [first, last] : {std::pair{0, 1}, std::pair{1, kCalls}}) {
    std::vector<Status> statuses(kCalls);
    Countdown countdown(last - first);
    for (int i = first; i < last; ++i) {
      auto call = calls[i].ForMember(rank);
      auto done = [&countdown, &statuses, i](const Status& status) {
        statuses[i] = status;
        countdown.Done(status);
      };
      call->done = done;
      if (auto now = endpoint.StartCall(calls[i].members(), std::move(call)))
        done(*now);
    }
    status = countdown.Wait();
    result.ended_at = Now();
    for (int i = first; i < last; ++i)
      if (statuses[i].ok()) result.wrong += calls[i].CountWrong(rank);
    if (!status.ok()) break;
  }
  endpoint.Leave("");
  result.code = status.code();
  std::snprintf(result.message, sizeof(result.message), "%s",
                status.message().c_str());
  result.reported = true;
}

// Runs the job to its end. A process that has not ended `deadline_s` after the
// start counts as hung, and is killed.
class Job {
 public:
  Job(const Case& item, double deadline_s)
      : item_(item), deadline_(Now() + deadline_s) {}

  JobResult Run() {
    JobResult result;
    const double start = Now();
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared;
    output_ = memfd_create("stderr", MFD_CLOEXEC);
    {
      pool::PoolSpec spec;
      static std::atomic<int> number{0};  // Jobs run side by side.
      spec.paths = {kFaultPrefix + std::to_string(getpid()) + "." +
                    std::to_string(++number)};
      spec.bytes = pool::MinimumPoolBytes(item_.ranks, 1);
      pool::ApplyChoice(&spec);
      for (int rank = 0; rank < item_.ranks; ++rank) Fork(rank, spec);
      // The pool is created after the forks, because an incoherent pool has a
      // thread, and a fork does not copy threads.
      const auto pool = OrDie(pool::Pool::Create(spec, item_.ranks));
      shared_->token = pool->token();
      // Keep the pool until all ranks have attached to it. No fault happens
      // before that.
      while (shared_->registered < item_.ranks && Now() < deadline_)
        sched_yield();
    }
    Attend();
    result.fault_at = shared_->fault_at;
    for (int rank = 0; rank < item_.ranks; ++rank)
      result.ranks.push_back(shared_->results[rank]);
    result.output = ReadOutput();
    result.seconds = Now() - start;
    close(output_);
    munmap(memory, sizeof(Shared));
    return result;
  }

 private:
  void Fork(int rank, pool::PoolSpec spec) {
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      dup2(output_, STDERR_FILENO);
      RunFaultyRank(rank, spec);
      _exit(0);
    }
    shared_->results[rank].pid = pid;
    running_.push_back(rank);
  }

  void RunFaultyRank(int rank, pool::PoolSpec spec) {
    if (auto incoherence = pool::Incoherence::FromEnvironment()) {
      incoherence->seed += 1 + rank;  // a host of its own
      incoherence->ApplyTo(&spec);
    }
    fault::Injector injector(item_.fault,
                             [this] { shared_->fault_at = Now(); });
    const bool victim = !item_.at_s && rank == item_.fault.rank;
    if (victim) injector.ApplyTo(&spec);
    while (shared_->token == 0) sched_yield();
    const auto pool =
        OrDie(pool::Pool::Attach(spec, item_.ranks, shared_->token));
    RunRank(item_, rank, pool.get(), shared_);
    if (!victim) return;
    for (int point = 0; point < fault::kNumPoints; ++point)
      shared_->results[rank].passes[point] =
          injector.passes(static_cast<fault::Point>(point));
  }

  // Waits until all processes have ended. Sends the signals of a fault from
  // outside, continues or kills a stopped process, and kills processes that
  // exceed the deadline.
  void Attend() {
    std::optional<double> strike_at;
    bool stopped = false;
    while (!running_.empty()) {
      if (item_.at_s && !strike_at && shared_->registered == item_.ranks)
        strike_at = Now() + *item_.at_s;
      if (strike_at && shared_->fault_at == 0 && Now() >= *strike_at) Strike();
      stopped |= Reap();
      if (stopped && MayEnd()) {
        const bool resume = item_.resume_after_s.has_value();
        kill(shared_->results[item_.fault.rank].pid,
             resume ? SIGCONT : SIGKILL);
        stopped = false;
      }
      if (Now() > deadline_) {
        for (int rank : running_) {
          shared_->results[rank].hung = true;
          kill(shared_->results[rank].pid, SIGKILL);
        }
        deadline_ = Now() + 60;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  void Strike() {
    shared_->fault_at = Now();
    const pid_t pid = shared_->results[item_.fault.rank].pid;
    if (std::find(running_.begin(), running_.end(), item_.fault.rank) !=
        running_.end())
      kill(pid, item_.fault.action == fault::Action::kStop ? SIGSTOP : SIGKILL);
  }

  // Returns true if it is time to continue the stopped process, or to kill it
  // if it is not to be continued.
  bool MayEnd() const {
    if (item_.resume_after_s)
      return Now() > shared_->fault_at + *item_.resume_after_s;
    return running_.size() == 1 && running_[0] == item_.fault.rank;
  }

  // Collects processes that have ended. Returns true if a process was stopped.
  bool Reap() {
    bool stopped = false;
    int status = 0;
    for (size_t i = 0; i < running_.size();) {
      RankResult& result = shared_->results[running_[i]];
      const pid_t got = waitpid(result.pid, &status, WNOHANG | WUNTRACED);
      if (got == result.pid && WIFSTOPPED(status)) stopped = true;
      if (got == result.pid && !WIFSTOPPED(status)) {
        result.status = status;
        running_.erase(running_.begin() + i);
      } else {
        ++i;
      }
    }
    return stopped;
  }

  std::string ReadOutput() const {
    std::string text(lseek(output_, 0, SEEK_END), '\0');
    const ssize_t got = pread(output_, text.data(), text.size(), 0);
    text.resize(std::max<ssize_t>(got, 0));
    return text;
  }

  Case item_;
  double deadline_;
  Shared* shared_ = nullptr;
  int output_ = -1;
  std::vector<int> running_;
};

}  // namespace jax_cxl::comm::faults

#endif  // JAX_CXL_TESTING_FAULTS_FAULT_JOB_H_
