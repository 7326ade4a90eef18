#ifndef JAX_CXL_COMM_HEALTH_PEERS_H_
#define JAX_CXL_COMM_HEALTH_PEERS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cc/base/awake_clock.h"
#include "cc/base/status.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Who the job's other ranks are, and whether they live.
//
// A thread keeps this process's heartbeats going and watches the others: a
// process on this host through a pidfd (its end is seen at once, and a stopped
// process is not taken for a dead one), a process on another host by its
// heartbeat.
//
// All methods may be called from any thread.
class Peers {
 public:
  // `local` are this process's ranks; their RankInfo has been written. Those of
  // `absent` are not in the job any more, and count as lost.
  // Errors: kDataLoss if another rank has not registered in the pool.
  static Result<std::unique_ptr<Peers>> Start(
      pool::Pool* pool, const std::vector<int>& local,
      double heartbeat_timeout_s, const std::vector<int>& absent = {});
  ~Peers();

  // kPeerLost once the rank's process is gone.
  Status Alive(int rank) const;
  // The time by which peers are waited for. Stands still while this process
  // does: when it and its peers have been stopped together, nobody was late.
  AwakeClock::Base::time_point AwakeTime() const { return awake_.Now(); }
  // Seconds since the rank's heart last beat, if that is longer than a process
  // that runs takes to beat again; else 0. A stopped process is silent.
  double Silence(int rank) const;
  // The status with which the rank gave up, prefixed with who it is - unless it
  // only passed on what another one had told it.
  Status GaveUp(int rank) const;
  // Tells the others that `rank`, one of ours, gives up. The first call counts.
  void GiveUp(int rank, const Status& reason);

  // Tells the others that `rank`, one of ours, will start no more than the
  // `started` calls that it has started. `reason` is empty if all went well,
  // and else says with which status or exception its program ends.
  void Leave(int rank, uint64_t started, const std::string& reason,
             bool program_ends);
  // kMismatch once the rank has left normally, kPeerLost once it has otherwise.
  Status Left(int rank) const;

  // "rank 3 (pid 4711 on host a)".
  std::string Name(int rank) const;
  // The same for programs: rank, pid and host.
  Details Identity(int rank) const;

 private:
  struct Peer {
    bool ours = false;
    bool absent = false;
    bool pid_known = false;  // a process of this host and pid namespace
    int pidfd = -1;  // -1: another host or container, or the kernel cannot
    uint64_t last_beat = 0;
    std::atomic<double> last_change_s{0};
    std::atomic<bool> lost{false};
    std::string name;
    int64_t pid = 0;
    std::string host;
  };

  Peers(pool::Pool* pool, double heartbeat_timeout_s);
  Status Identify(const std::vector<int>& local,
                  const std::vector<int>& absent);
  void Watch();
  void Beat();
  void LookForDead();
  double AwakeSeconds() const;

  pool::Pool* pool_;
  pool::Doorbells doorbells_;
  double heartbeat_timeout_s_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<int> local_;
  std::mutex give_up_mutex_;
  mutable AwakeClock awake_;
  int wake_fd_ = -1;
  std::atomic<bool> stop_{false};
  std::thread watcher_;
};

// Writes who `rank` is into the pool. Runs in every process for its own ranks,
// before the ranks meet.
void Register(pool::Pool* pool, int rank, int process_index, int device_id);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_PEERS_H_
