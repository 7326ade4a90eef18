#include "cc/comm/runtime.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace jax_cxl::comm {
namespace {

// Returns the first rank of each process, in the order of the processes.
std::vector<int32_t> FirstRanks(const pool::Pool& pool,
                                const std::vector<int>& absent) {
  std::map<int32_t, int32_t> first;  // by process
  for (int32_t rank = 0; rank < pool.world_size(); ++rank)
    if (std::ranges::find(absent, rank) == absent.end())
      first.try_emplace(pool.coherence()
                            .AcquireCopy(pool.rank_page(rank)->info)
                            .process_index,
                        rank);
  std::vector<int32_t> ranks;
  for (const auto& [process, rank] : first) ranks.push_back(rank);
  return ranks;
}

// Never destroyed: XLA's threads may still use it while the process exits.
struct CurrentRuntime {
  std::mutex mutex;
  std::shared_ptr<Runtime> runtime;
};

CurrentRuntime& TheCurrent() {
  static auto& current = *new CurrentRuntime;
  return current;
}

}  // namespace

Status Runtime::Start(std::vector<Host> hosts,
                      const std::vector<LocalRank>& local,
                      const std::vector<int>& absent, int generation,
                      const Options& options) {
  std::shared_ptr<Runtime> runtime(new Runtime);
  runtime->generation_ = generation;
  runtime->hosts_ = std::move(hosts);
  std::unordered_map<int32_t, Endpoint*> endpoint_of;
  for (Host& host : runtime->hosts_) {
    CXL_ASSIGN_OR_RETURN(host.peers,
                         Peers::Start(host.pool.get(), host.ranks,
                                      options.heartbeat_timeout_s, absent));
  }
  for (const LocalRank& entry : local) {
    const Host* host = runtime->HostOf(entry.rank);
    if (host == nullptr)
      return Error(
          Code::kFailedPrecondition, "rank ", entry.rank,
          " has not registered in the pool; please report this to jax_cxl");
    runtime->endpoints_.push_back(std::make_unique<Endpoint>(
        host->pool.get(), host->peers.get(), &runtime->completions_, options,
        entry.rank));
    Endpoint* endpoint = runtime->endpoints_.back().get();
    runtime->by_ordinal_[entry.device_ordinal] = {entry.rank, endpoint};
    endpoint_of[entry.rank] = endpoint;
  }
  runtime->level_calls_ = std::make_unique<LevelCalls>(
      &runtime->completions_,
      [endpoint_of](int32_t rank, const std::vector<int32_t>& members,
                    std::unique_ptr<Call> call) {
        return endpoint_of.at(rank)->StartCall(members, std::move(call));
      },
      [endpoint_of](int32_t rank, LocalWait wait) {
        endpoint_of.at(rank)->AddLocalWait(std::move(wait));
      },
      [started = runtime.get()] { return started->failure(); }, options);
  const std::vector<int32_t> firsts = FirstRanks(*runtime->pool(), absent);
  for (const LocalRank& entry : local) {
    if (std::ranges::find(firsts, entry.rank) == firsts.end()) continue;
    const Host* host = runtime->HostOf(entry.rank);
    CXL_ASSIGN_OR_RETURN(
        runtime->exchange_,
        Exchange::Open(host->pool.get(), host->peers.get(),
                       endpoint_of[entry.rank], firsts, options));
  }
  CurrentRuntime& current = TheCurrent();
  std::lock_guard lock(current.mutex);
  if (current.runtime != nullptr)
    return Error(Code::kFailedPrecondition,
                 "jax_cxl is running already; call jax_cxl.shutdown() first");
  current.runtime = std::move(runtime);
  return OkStatus();
}

void Runtime::Stop(const std::string& reason, bool program_ends) {
  std::shared_ptr<Runtime> runtime;
  CurrentRuntime& current = TheCurrent();
  {
    std::lock_guard lock(current.mutex);
    runtime = std::move(current.runtime);
    current.runtime = nullptr;
  }
  if (runtime == nullptr) return;
  if (runtime->exchange_ != nullptr) runtime->exchange_->Abort(WasShutDown());
  for (auto& endpoint : runtime->endpoints_)
    endpoint->Leave(reason, program_ends);
  if (!reason.empty() || !runtime->failure().ok())
    for (Host& host : runtime->hosts_) host.pool->KeepNames();
  // An XLA handler may still hold the runtime, on a thread that the runtime's
  // destructor has to join. Wait until the handler is done, so that this thread
  // is the last owner and runs the destructor.
  while (runtime.use_count() > 1)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

std::shared_ptr<Runtime> Runtime::Current() {
  CurrentRuntime& current = TheCurrent();
  std::lock_guard lock(current.mutex);
  return current.runtime;
}

bool Runtime::Failed() {
  const std::shared_ptr<Runtime> runtime = Current();
  return runtime != nullptr && !runtime->failure().ok();
}

void Runtime::NoteFailedProgram(const std::string& reason) const {
  for (const Host& host : hosts_)
    for (int rank : host.ranks) host.peers->NoteFailedProgram(rank, reason);
}

void Runtime::NoteFailedCallbacks(int count) const {
  for (const Host& host : hosts_)
    for (int rank : host.ranks) host.peers->NoteFailedCallbacks(rank, count);
}

Status Runtime::failure() const {
  for (const auto& [ordinal, local] : by_ordinal_)
    if (Status status = peers()->GaveUp(local.rank); !status.ok())
      return status;
  return OkStatus();
}

const Runtime::Local* Runtime::Find(int32_t device_ordinal) const {
  auto found = by_ordinal_.find(device_ordinal);
  return found == by_ordinal_.end() ? nullptr : &found->second;
}

const Runtime::Host* Runtime::HostOf(int rank) const {
  const auto found = std::ranges::find_if(hosts_, [rank](const Host& host) {
    return std::ranges::find(host.ranks, rank) != host.ranks.end();
  });
  return found == hosts_.end() ? nullptr : &*found;
}

pool::Pool* Runtime::pool(int rank) const {
  const Host* host = HostOf(rank);
  return host == nullptr ? pool() : host->pool.get();
}

Stats Runtime::stats() const {
  Stats total;
  for (auto& endpoint : endpoints_) total += endpoint->stats();
  return total;
}

std::vector<RecordedOperation> Runtime::operations() const {
  std::map<std::string, RecordedOperation> total;
  for (auto& endpoint : endpoints_) endpoint->AddOperations(&total);
  std::vector<RecordedOperation> operations;
  for (auto& [name, sum] : total) operations.push_back(std::move(sum));
  return operations;
}

}  // namespace jax_cxl::comm
