// Speed of collectives without JAX: processes that share a pool and call one
// collective after the other, in the columns of nccl-tests.
//
//   engine    plans executed on rings in shared memory, by the calling thread
//   in_order  calls that come in one order on all ranks: the same, and members
//             compare what they call before they read
//   endpoint  what XLA's calls go through: calls in any order, and threads that
//             take over from the caller
//
// so the differences are what comparing, and what matching and hand-over cost.
//
// engine_benchmark [--ranks=2] [--max_bytes=67108864] [--repeats=7]
//                  [--backends=engine,in_order,endpoint] [--ops=all_gather,...]
//                  [--min_bytes=8] [--json=FILE]
//                  [--coherence=coherent|uncached|flush]

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/comm/backoff.h"
#include "cc/comm/benchmark_problem.h"
#include "cc/comm/benchmark_report.h"
#include "cc/comm/benchmark_team.h"
#include "cc/comm/completions.h"
#include "cc/comm/endpoint.h"
#include "cc/comm/in_order.h"
#include "cc/comm/peers.h"
#include "cc/comm/world_testing.h"
#include "cc/engine/cpu/executor.h"
#include "cc/plan/bounds.h"
#include "cc/plan/plan.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {
namespace {

using plan::Op;

constexpr int kMaxRanks = Meeting::kMaxRanks;
constexpr uint64_t kSlotBytes = Tuning().slot_bytes;
constexpr int kNumSlots = Tuning().num_slots;
// Of the copies that the bound is made of; their least is a quarter.
constexpr uint64_t kWindowBytes = uint64_t{4} << 20;
constexpr double kSampleSeconds = 0.01;
constexpr int kMaxCalls = 20000;

double Now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

struct Flags {
  int ranks = 2;
  uint64_t min_bytes = 8;
  uint64_t max_bytes = uint64_t{64} << 20;
  std::string coherence = "coherent";
  int repeats = 7;
  std::string backends = "engine,in_order,endpoint";
  std::string ops =
      "barrier,all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,"
      "reduce,gather,scatter";
  std::string json;
};

// Whether `name` is one of the names in `list`, between commas.
bool Names(std::string_view list, std::string_view name) {
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    if (list.substr(at, comma - at) == name) return true;
    at = comma + 1;
  }
  return false;
}

// Executes a problem's collective once and returns when it is done.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual void Prepare(const Problem&) {}
  virtual void Call(Problem* problem) = 0;
};

// Everybody calls in the same order, so plans can be executed as they are.
class EngineBackend : public Backend {
 public:
  EngineBackend(pool::Pool* pool, const Team& team)
      : rings_(pool::Doorbells(pool->coherence(), pool->epoch()),
               Views(pool, team.size()), team.rank(), kNumSlots) {}

  // What a rank takes from the end of its arena; Endpoint starts at the front.
  static constexpr uint64_t kBytes =
      2 * sizeof(pool::Doorbell) + kNumSlots * kSlotBytes;

  static std::byte* Memory(pool::Pool* pool, int rank) {
    const pool::Pool::Range arena = pool->arena(0, rank);
    const uint64_t offset = arena.offset + arena.bytes - kBytes;
    return pool->At(offset / pool::kLineBytes * pool::kLineBytes, kBytes);
  }

  const char* name() const override { return "engine"; }

  void Prepare(const Problem& problem) override {
    plan::Geometry geometry;
    geometry.slot_bytes = kSlotBytes;
    geometry.num_slots = kNumSlots;
    plan_ = std::make_shared<const plan::Plan>(
        OrDie(plan::MakePlan(problem.request, geometry)));
  }

  void Call(Problem* problem) override {
    cpu::Execution execution(
        plan_, &rings_, rounds_, DType::kFloat32, ReduceOp::kSum,
        reinterpret_cast<const std::byte*>(problem->input.data()),
        reinterpret_cast<std::byte*>(problem->output.data()),
        Tuning().past_caches_bytes);
    Backoff backoff;
    for (size_t steps = 0; !execution.Advance(&traffic_);) {
      if (execution.steps_done() != steps)
        backoff.Reset();
      else
        backoff.Pause();
      steps = execution.steps_done();
    }
    rounds_ += plan_->rounds;
  }

 private:
  static std::vector<cpu::RingView> Views(pool::Pool* pool, int size) {
    std::vector<cpu::RingView> views(size);
    for (int rank = 0; rank < size; ++rank) {
      auto* bells = reinterpret_cast<pool::Doorbell*>(Memory(pool, rank));
      views[rank].published = &bells[0].word;
      views[rank].released = &bells[1].word;
      auto* slots = reinterpret_cast<std::byte*>(bells + 2);
      for (int slot = 0; slot < kNumSlots; ++slot)
        views[rank].slots[slot] = slots + slot * kSlotBytes;
    }
    return views;
  }

  cpu::Rings rings_;
  std::shared_ptr<const plan::Plan> plan_;
  uint64_t rounds_ = 0;
  cpu::Traffic traffic_;
};

void Check(const Status& status) {
  if (status.ok()) return;
  std::cerr << status.message() << std::endl;
  _exit(1);  // Possibly a thread that exit() would join.
}

// What a process has of a job, as comm::Runtime holds it.
class Job {
 public:
  Job(pool::Pool* pool, const Team& team)
      : peers_(OrDie(
            Peers::Start(pool, {team.rank()}, Options().heartbeat_timeout_s))),
        endpoint_(pool, peers_.get(), &completions_, Options(), team.rank()),
        members_(team.size()) {
    std::iota(members_.begin(), members_.end(), 0);
  }

  Endpoint& endpoint() { return endpoint_; }
  const std::vector<int32_t>& members() const { return members_; }

 private:
  std::unique_ptr<Peers> peers_;
  Completions completions_;
  Endpoint endpoint_;
  std::vector<int32_t> members_;
};

void Fill(const Problem& problem, comm::Call* call) {
  call->request = problem.request;
  call->dtype = DType::kFloat32;
  call->input = reinterpret_cast<const std::byte*>(problem.input.data());
  call->output =
      reinterpret_cast<std::byte*>(const_cast<float*>(problem.output.data()));
  call->name = "benchmark";
}

class InOrderBackend : public Backend {
 public:
  explicit InOrderBackend(Job* job)
      : in_order_(OrDie(job->endpoint().OpenInOrder(job->members()))) {}

  const char* name() const override { return "in_order"; }
  void Prepare(const Problem& problem) override { Fill(problem, &call_); }
  void Call(Problem*) override { Check(in_order_->Run(&call_)); }

 private:
  std::unique_ptr<InOrder> in_order_;
  comm::Call call_;
};

class EndpointBackend : public Backend {
 public:
  explicit EndpointBackend(Job* job) : job_(job) {}

  const char* name() const override { return "endpoint"; }

  void Call(Problem* problem) override {
    auto call = std::make_unique<comm::Call>();
    Fill(*problem, call.get());
    call->identity = ++identity_;
    done_ = 0;
    call->done = [this](const Status& status) {
      Check(status);
      done_ = 1;
      done_.notify_one();
    };
    if (std::optional<Status> status =
            job_->endpoint().Submit(job_->members(), std::move(call)))
      Check(*status);
    else
      done_.wait(0);
  }

 private:
  Job* job_;
  uint64_t identity_ = 0;
  std::atomic<int> done_{0};
};

struct Rates {
  double write = 0;  // bytes per second of the slowest rank
  double read = 0;
};

// Copies a message through windows as large as a ring, which their owner
// writes and then the next rank reads, all ranks at once.
Rates MeasureCopies(Team& team, pool::Pool* pool, uint64_t bytes,
                    std::vector<std::byte>* buffer) {
  bytes = std::max(bytes, kWindowBytes / 4);
  buffer->resize(2 * bytes);
  const int next = (team.rank() + 1) % team.size();
  // Between the engine's rings and what the endpoint takes.
  const auto window = [&](int rank) {
    return EngineBackend::Memory(pool, rank) - kWindowBytes;
  };
  double writing = 0, reading = 0;
  for (uint64_t first = 0; first < bytes; first += kWindowBytes) {
    const uint64_t size = std::min(kWindowBytes, bytes - first);
    team.Barrier();
    double start = Now();
    std::memcpy(window(team.rank()), buffer->data() + first, size);
    writing += Now() - start;
    team.Barrier();
    start = Now();
    std::memcpy(buffer->data() + bytes + first, window(next), size);
    reading += Now() - start;
  }
  return {bytes / team.Max(writing), bytes / team.Max(reading)};
}

double BoundSeconds(const plan::Request& request, const Rates& rates) {
  double bound = 0;
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    plan::Request of_rank = request;
    of_rank.rank = rank;
    const plan::PoolBytes bytes = plan::LowerBound(of_rank);
    bound =
        std::max(bound, bytes.written / rates.write + bytes.read / rates.read);
  }
  return bound;
}

// Seconds of one call on the slowest rank.
double Sample(Team& team, Backend& backend, Problem* problem, int calls) {
  team.Barrier();
  const double start = Now();
  for (int i = 0; i < calls; ++i) backend.Call(problem);
  return team.Max(Now() - start) / calls;
}

int Calibrate(Team& team, Backend& backend, Problem* problem) {
  int calls = 1;
  Sample(team, backend, problem, calls);
  while (calls < kMaxCalls &&
         Sample(team, backend, problem, calls) * calls < kSampleSeconds)
    calls *= 2;
  return std::min(calls, kMaxCalls);
}

// Measures one collective with all backends in turn; returns the wrong
// elements.
uint64_t Measure(Team& team, pool::Pool* pool,
                 const std::vector<std::unique_ptr<Backend>>& backends, Op op,
                 uint64_t bytes, int repeats, Report* report) {
  if (report != nullptr)
    std::fprintf(stderr, "%s %llu bytes\r",
                 std::string(plan::OpName(op)).c_str(),
                 static_cast<unsigned long long>(bytes));
  Problem problem = MakeProblem(op, bytes, team);
  std::vector<int> calls;
  for (const auto& backend : backends) {
    backend->Prepare(problem);
    calls.push_back(Calibrate(team, *backend, &problem));
  }
  std::vector<std::vector<double>> seconds(backends.size());
  std::vector<double> bounds;
  std::vector<std::byte> buffer;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (size_t b = 0; b < backends.size(); ++b)
      seconds[b].push_back(Sample(team, *backends[b], &problem, calls[b]));
    bounds.push_back(BoundSeconds(
        problem.request, MeasureCopies(team, pool, problem.bytes, &buffer)));
  }
  uint64_t all_wrong = 0;
  CountWrong(&problem);  // Spoils the output.
  for (size_t b = 0; b < backends.size(); ++b) {
    backends[b]->Call(&problem);
    const double wrong = team.Sum(static_cast<double>(CountWrong(&problem)));
    all_wrong += static_cast<uint64_t>(wrong);
    if (report != nullptr)
      report->Add(backends[b]->name(), problem, seconds[b],
                  static_cast<uint64_t>(wrong), Median(bounds));
  }
  return all_wrong;
}

// Eight times as large each, and the last.
std::vector<uint64_t> Sizes(const Flags& flags) {
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = flags.min_bytes; bytes < flags.max_bytes; bytes *= 8)
    sizes.push_back(bytes);
  sizes.push_back(flags.max_bytes);
  return sizes;
}

int RunRank(Team& team, Meeting* meeting, const Flags& flags,
            const std::string& command) {
  double load = 0;
  getloadavg(&load, 1);
  pool::PoolSpec spec;
  spec.paths = {"bench." +
                std::to_string(team.rank() == 0 ? getpid() : getppid())};
  // Channels, the engine's ring, the window of the copies.
  spec.bytes = (uint64_t{24} << 20) * team.size() + (uint64_t{4} << 20);
  spec.coherence = OrDie(pool::ParseCoherenceMode(flags.coherence));
  std::unique_ptr<pool::Pool> pool;
  if (team.rank() == 0) {
    pool = OrDie(pool::Pool::Create(spec, team.size()));
    meeting->token = pool->token();
  }
  team.Barrier();
  if (team.rank() != 0)
    pool = OrDie(pool::Pool::Attach(spec, team.size(), meeting->token));
  Register(pool.get(), team.rank(), team.rank(), team.rank());
  std::memset(EngineBackend::Memory(pool.get(), team.rank()), 0,
              EngineBackend::kBytes);
  team.Barrier();
  pool->Unlink();
  Job job(pool.get(), team);
  std::vector<std::unique_ptr<Backend>> backends;
  if (Names(flags.backends, "engine"))
    backends.push_back(std::make_unique<EngineBackend>(pool.get(), team));
  if (Names(flags.backends, "in_order"))
    backends.push_back(std::make_unique<InOrderBackend>(&job));
  if (Names(flags.backends, "endpoint"))
    backends.push_back(std::make_unique<EndpointBackend>(&job));
  std::unique_ptr<Report> report;
  if (team.rank() == 0) report = std::make_unique<Report>(flags.ranks);
  uint64_t wrong = 0;
  for (Op op : {Op::kBarrier, Op::kAllReduce, Op::kAllGather,
                Op::kReduceScatter, Op::kAllToAll, Op::kBroadcast, Op::kReduce,
                Op::kGather, Op::kScatter}) {
    if (!Names(flags.ops, plan::OpName(op))) continue;
    const bool moves = op != Op::kBarrier;
    for (uint64_t bytes : moves ? Sizes(flags) : std::vector<uint64_t>{0})
      wrong += Measure(team, pool.get(), backends, op, bytes, flags.repeats,
                       report.get());
  }
  if (report != nullptr && !flags.json.empty())
    report->Write(flags.json, command, load);
  team.Barrier();
  return wrong == 0 ? 0 : 1;
}

// A rank that fails takes the others, who would wait for it, along.
void OnChildEnd(int) {
  int status = 0;
  while (waitpid(-1, &status, WNOHANG) > 0)
    if (status != 0) _exit(1);
}

std::optional<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value =
        equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (name == "--ranks")
      flags.ranks = std::atoi(value.c_str());
    else if (name == "--min_bytes")
      flags.min_bytes = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "--max_bytes")
      flags.max_bytes = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "--coherence")
      flags.coherence = value;
    else if (name == "--repeats")
      flags.repeats = std::atoi(value.c_str());
    else if (name == "--backends")
      flags.backends = value;
    else if (name == "--ops")
      flags.ops = value;
    else if (name == "--json")
      flags.json = value;
    else
      return std::nullopt;
  }
  if (flags.ranks < 2 || flags.ranks > kMaxRanks || flags.repeats < 1 ||
      flags.min_bytes == 0)
    return std::nullopt;
  return flags;
}

int Main(int argc, char** argv) {
  const std::optional<Flags> flags = ParseFlags(argc, argv);
  if (!flags) {
    std::fprintf(stderr,
                 "usage: %s [--ranks=2..%d] [--max_bytes=BYTES] [--repeats=7] "
                 "[--min_bytes=8] [--backends=engine,in_order,endpoint] "
                 "[--ops=all_reduce,...] [--json=FILE] "
                 "[--coherence=coherent|uncached|flush]\n",
                 argv[0], kMaxRanks);
    return 2;
  }
  std::string command = "engine_benchmark";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  void* memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* meeting = new (memory) Meeting();
  signal(SIGCHLD, OnChildEnd);
  int rank = 0;
  for (int other = 1; other < flags->ranks && rank == 0; ++other)
    if (fork() == 0) {
      rank = other;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
  Team team(meeting, rank, flags->ranks);
  return RunRank(team, meeting, *flags, command);
}

}  // namespace
}  // namespace jax_cxl::comm

int main(int argc, char** argv) { return jax_cxl::comm::Main(argc, argv); }
