#ifndef JAX_CXL_COMM_CHANNEL_H_
#define JAX_CXL_COMM_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/arena.h"
#include "cc/comm/call.h"
#include "cc/comm/negotiation.h"
#include "cc/comm/peers.h"
#include "cc/engine/cpu/executor.h"
#include "cc/plan/plan.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// What every process of a job must set alike, and how patient it is.
struct Options {
  uint64_t slot_bytes = 0;  // 0: follows from the pool's size
  int num_slots = 0;        // 0: follows from the number of pool devices
  double warn_after_s = 10;
  double timeout_s = 300;
  double heartbeat_timeout_s = 5;
};

// One rank's end of one group: connects to the other members' rings, agrees
// with them on the order of calls, executes one call after the other.
// `Progress` never waits.
//
// Not thread-safe: its Endpoint serializes all use.
class Channel {
 public:
  struct Finished {
    std::unique_ptr<Call> call;
    Status status;
  };

  Channel(pool::Pool* pool, Peers* peers, const Options& options, Group group);

  // Allocates this member's part and tells the others where it is.
  Status Open(Arena* arena);

  void Submit(std::unique_ptr<Call> call);

  // Does what can be done without waiting; appends finished calls. True if
  // anything moved.
  // Errors: the group is unusable from now on, all its calls are finished with
  // that status.
  Result<bool> Progress(std::vector<Finished>* finished);

  // Finishes every call with `status`.
  void Fail(const Status& status, std::vector<Finished>* finished);

  bool idle() const { return waiting_.empty() && !current_ && !pending(); }
  const cpu::Traffic& traffic() const { return traffic_; }

  // What Progress checks when nothing moved: dead or failed peers, deadlines.
  Status CheckPeers(Clock::time_point now);

 private:
  size_t pending() const { return negotiation_ ? negotiation_->pending() : 0; }
  Status Connect();
  Result<bool> ConnectMember(int member);
  Status StartNext(bool* started);
  Status StartTables();
  Status StartRows();
  Result<std::shared_ptr<const plan::Plan>> PlanFor(const Call& call);
  std::vector<int> WaitingFor() const;
  const Call* oldest() const;
  std::string Late(const Call& call, double waited,
                   const std::vector<int>& members) const;
  uint64_t CallsLeftBehind();

  pool::Pool* pool_;
  Peers* peers_;
  Options options_;
  Group group_;
  pool::Doorbells doorbells_;
  plan::Geometry geometry_;

  // Where each member's part is: none until it was found in its directory.
  std::vector<std::optional<pool::ChannelPlace>> places_;
  // Calls submitted before all were found.
  std::deque<std::unique_ptr<Call>> waiting_;

  std::unique_ptr<cpu::Rings> rings_;
  std::unique_ptr<Negotiation> negotiation_;
  std::unique_ptr<Call> current_;
  std::optional<cpu::Execution> execution_;
  bool gathers_tables_ = false;
  uint64_t rounds_ = 0;  // rounds of all finished calls

  // Ends of calls (in rounds) that some peer may not have left behind yet.
  std::deque<uint64_t> call_ends_;
  uint64_t calls_left_behind_ = 0;

  std::unordered_map<std::string, std::shared_ptr<const plan::Plan>> plans_;
  cpu::Traffic traffic_;
  Clock::time_point last_warning_;
  // How far the calls had come when CheckPeers last looked, and since when.
  std::pair<uint64_t, size_t> stand_;
  Clock::time_point moved_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CHANNEL_H_
