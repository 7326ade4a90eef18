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
#include "cc/base/process_identity.h"
#include "cc/base/status.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/open/unique_fd.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// The identities of the job's other ranks, and whether they live.
//
// A thread increments this process's heartbeats and watches the other
// processes. It watches a process on this host through a pidfd: it sees the end
// of the process at once, and never mistakes a stopped process for a dead one.
// But the kernel reports the end only after it has freed the process's
// resources, and the driver of a GPU may take seconds for that. So the thread
// also asks the kernel about a process whose heartbeat is late. It watches a
// process on another host through its heartbeat.
//
// Thread-safe.
class Peers {
 public:
  // `local` are this process's ranks, which must have registered. Ranks in
  // `absent` have left the job, and count as lost. Fails with kDataLoss if
  // another rank has not registered in the pool.
  static Result<std::unique_ptr<Peers>> Start(
      pool::Pool* pool, const std::vector<int>& local,
      double heartbeat_timeout_s, const std::vector<int>& absent = {});
  ~Peers();

  // Fails with kPeerLost once the rank's process has ended.
  Status Alive(int rank) const;
  // Returns true once the rank's process has certainly ended, so that it no
  // longer reads. A stopped heartbeat does not prove that.
  bool Ended(int rank) const { return peers_[rank]->ended; }
  // The clock for waits. It stops while this process is stopped: if this
  // process and its peers have been stopped together, no peer was late.
  AwakeClock::Base::time_point AwakeTime() const { return awake_.Now(); }
  // Returns the seconds since the rank's last heartbeat, or 0 while the next
  // heartbeat is not late. A stopped process sends no heartbeats.
  double Silence(int rank) const;
  // Returns the status with which the rank gave up, or OK. The message names
  // the rank, unless the rank only passed on an error of another rank.
  Status GaveUp(int rank) const;
  // Tells the others that `rank`, a rank of this process, gives up. Only the
  // first call has an effect.
  void GiveUp(int rank, const Status& reason);

  // Tells the others that a program over several processes has failed on
  // `rank`, a rank of this process, outside of its collectives.
  void NoteFailedProgram(int rank, const std::string& reason);
  // Fails with kPeerLost if more programs have failed on `rank` than on `self`.
  // In that case, `self` still runs a program that has ended on `rank`.
  Status FailedMoreThan(int rank, int self) const;

  // Notes how many host callbacks have failed in the process of `rank`, a rank
  // of this process, whose programs have not ended yet.
  void NoteFailedCallbacks(int rank, int count) {
    peers_[rank]->failed_callbacks = count;
  }
  // Returns true if a program of `rank` has failed, but has not ended yet.
  bool ProgramFails(int rank) const {
    return peers_[rank]->failed_callbacks > 0;
  }

  // Tells the other ranks that `rank`, a rank of this process, has started
  // `started` calls and will start no more. `reason` is the status or exception
  // with which the program ends, or empty if there was no error. `program_ends`
  // is false if the program has only shut jax_cxl down, and goes on.
  void Leave(int rank, uint64_t started, const std::string& reason,
             bool program_ends);
  // Fails with kMismatch once the rank has left without an error, and with
  // kPeerLost once it has left with one.
  Status Left(int rank) const;

  // Returns a name like "rank 3 (pid 4711 on host a)".
  std::string Name(int rank) const;
  Details Identity(int rank) const;

 private:
  struct Peer {
    bool ours = false;
    bool absent = false;
    bool pid_known = false;  // a process of this host and pid namespace
    // Invalid for another host or container, or if pidfds are unsupported.
    pool::UniqueFd pidfd;
    uint64_t last_beat = 0;
    std::atomic<double> last_change_s{0};
    std::atomic<bool> lost{false};
    std::atomic<bool> ended{false};
    std::atomic<int> failed_callbacks{0};
    std::string name;
    ProcessIdentity process = {};
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
  pool::UniqueFd wake_fd_;
  std::atomic<bool> stop_{false};
  std::jthread watcher_;
};

// Writes the identity of `rank` into the pool. Every process calls it for its
// own ranks. All ranks must have registered before Peers::Start.
void Register(pool::Pool* pool, int rank, int process_index, int device_id);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_PEERS_H_
