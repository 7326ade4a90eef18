// Measures collectives without JAX. Several processes share a pool and call one
// collective after another, in three ways. The columns are those of nccl-tests.
//
//   copies    the engine's copies and additions, without any waiting
//   engine    the calling thread executes plans on rings in shared memory
//   endpoint  the path of XLA's calls: calls in any order, and threads that
//             take over from the caller
//
// `engine` minus `copies` is the cost of waiting for other ranks. `endpoint`
// minus `engine` is the cost of matching and comparing calls, and of changing
// threads. The results of `copies` are wrong, and are not checked.
//
// engine_benchmark [--ranks=2] [--max_bytes=67108864] [--repeats=7]
//                  [--backends=engine,endpoint] [--ops=all_gather,...]
//                  [--min_bytes=8] [--json=FILE]
//                  [--coherence=coherent|uncached|flush]

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "cc/bench/backends.h"
#include "cc/bench/flags.h"
#include "cc/bench/problem.h"
#include "cc/bench/report.h"
#include "cc/bench/team.h"
#include "cc/plan/plan.h"
#include "cc/pool/pool.h"
#include "cc/simulator/bounds.h"

namespace jax_cxl::comm {
namespace {

using plan::Op;

constexpr int kMaxRanks = Meeting::kMaxRanks;
// MeasureCopies copies messages through a window of this size. It measures at
// least a quarter of the window, even for shorter messages.
constexpr uint64_t kWindowBytes = uint64_t{4} << 20;
constexpr double kSampleSeconds = 0.01;
constexpr int kMaxCalls = 20000;

double Now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

struct Rates {
  double write = 0;  // bytes per second of the slowest rank
  double read = 0;
};

// Measures plain copies of a message, as a bound. Each rank copies its message
// part by part: it writes a part to its own window, and then reads a part of
// the next rank's message from that rank's window. All ranks do this at the
// same time. A window is as large as a ring.
Rates MeasureCopies(Team& team, pool::Pool* pool, uint64_t bytes,
                    std::vector<std::byte>* buffer) {
  bytes = std::max(bytes, kWindowBytes / 4);
  buffer->resize(2 * bytes);
  const int next = (team.rank() + 1) % team.size();
  // The window of a rank ends where the memory of EngineBackend begins. The
  // memory of the endpoint lies before the window.
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

// Makes `calls` calls. Returns the seconds of one call on the slowest rank.
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

// Measures one collective with each backend, which take turns, and adds rows to
// `report`. Returns the number of wrong elements on all ranks.
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
  CountWrong(&problem);  // overwrites the output
  for (size_t b = 0; b < backends.size(); ++b) {
    backends[b]->Call(&problem);
    const uint64_t found = backends[b]->IsRight() ? CountWrong(&problem) : 0;
    const double wrong = team.Sum(static_cast<double>(found));
    all_wrong += static_cast<uint64_t>(wrong);
    if (report != nullptr)
      report->Add(backends[b]->name(), problem, seconds[b],
                  static_cast<uint64_t>(wrong), Median(bounds));
  }
  return all_wrong;
}

// Returns sizes from min_bytes to max_bytes. Each is eight times the previous
// one, except that the last one is max_bytes.
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
  // Room in each rank's arena for the channels of the endpoint, the ring of
  // EngineBackend, and the window of MeasureCopies.
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
  if (Names(flags.backends, "copies"))
    backends.push_back(std::make_unique<CopiesBackend>(pool.get(), team));
  if (Names(flags.backends, "engine"))
    backends.push_back(std::make_unique<EngineBackend>(pool.get(), team));
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

// Ends rank 0 if another rank has failed. Rank 0 is the parent of all other
// ranks, and they end with it. Otherwise they would wait for the failed rank.
void OnChildEnd(int) {
  int status = 0;
  while (waitpid(-1, &status, WNOHANG) > 0)
    if (status != 0) _exit(1);
}

int Main(int argc, char** argv) {
  const std::optional<Flags> flags = ParseFlags(argc, argv);
  if (!flags) {
    std::fprintf(stderr, kUsage, argv[0], kMaxRanks);
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
