#ifndef JAX_CXL_COMM_RUNTIME_H_
#define JAX_CXL_COMM_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/completions.h"
#include "cc/comm/endpoint.h"
#include "cc/comm/exchange.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/level_calls.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// The resources of this process in a job: the mapped pool, and an endpoint for
// each of its devices. A process has at most one current runtime.
//
// Start and Stop must not run concurrently. Current is thread-safe, and the
// caller may use the runtime while it holds the returned pointer.
class Runtime {
 public:
  struct LocalRank {
    int32_t device_ordinal;  // what XLA passes to this device's handlers
    int rank;                // index in the world
  };

  // A mapping of the pool, and the ranks of this process that use it. Usually
  // one mapping serves all ranks. In tests with an interposer
  // (cc/pool/coherence/interposer.h), each rank has its own mapping, as if it
  // were on another host.
  struct Host {
    std::unique_ptr<pool::Pool> pool;
    std::vector<int> ranks;
    std::unique_ptr<Peers> peers;  // null before Start
  };

  // Makes a runtime from `hosts`, and makes it the current runtime. Every rank
  // of the job must have registered in the pool, except those in `absent`.
  // Fails with kFailedPrecondition if there is a current runtime already.
  static Status Start(std::vector<Host> hosts,
                      const std::vector<LocalRank>& local,
                      const std::vector<int>& absent, int generation,
                      const Options& options);
  // Ends the current runtime, if there is one: fails all calls that have not
  // finished, and releases the pool. `reason` and `program_ends` are those of
  // Peers::Leave. After an error, the pool keeps its name, so that `python -m
  // jax_cxl status` finds the pool. If the name is already removed, it stays
  // removed.
  static void Stop(const std::string& reason, bool program_ends);
  static std::shared_ptr<Runtime> Current();
  // Returns true if a rank of the current runtime has given up.
  static bool Failed();

  // Tells the other ranks that a program over several processes has failed in
  // this process, outside of its collectives.
  void NoteFailedProgram(const std::string& reason) const;
  void NoteFailedCallbacks(int count) const;

  struct Local {
    int rank;
    Endpoint* endpoint;
  };
  // Returns null if XLA's device is not one of this process's ranks.
  const Local* Find(int32_t device_ordinal) const;

  LevelCalls* level_calls() { return level_calls_.get(); }

  // The exchange between the processes of the job. Its members are the first
  // ranks of the processes, in the order of the processes.
  Exchange* exchange() { return exchange_.get(); }

  // Number of times that the job has continued after an error. Programs made
  // for another generation do not run.
  int generation() const { return generation_; }

  // The pool and the peers of the first Host.
  pool::Pool* pool() const { return hosts_[0].pool.get(); }
  Peers* peers() const { return hosts_[0].peers.get(); }
  // The mapping of the pool that belongs to one of this process's ranks. Only
  // that mapping may write for the rank.
  pool::Pool* pool(int rank) const;

  Stats stats() const;
  std::vector<RecordedOperation> operations() const;

 private:
  Runtime() = default;

  // Returns null if `rank` is not one of this process's ranks.
  const Host* HostOf(int rank) const;
  // Returns why a rank of this process has given up, or OK if none has.
  Status failure() const;

  int generation_ = 0;
  // Destroyed in reverse order, because endpoints use the other members.
  std::vector<Host> hosts_;
  Completions completions_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::unique_ptr<LevelCalls> level_calls_;
  std::unique_ptr<Exchange> exchange_;
  std::unordered_map<int32_t, Local> by_ordinal_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_RUNTIME_H_
