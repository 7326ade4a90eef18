#ifndef JAX_CXL_NCCL_GROUP_H_
#define JAX_CXL_NCCL_GROUP_H_

#include <functional>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/calls/operation.h"
#include "cc/nccl/communicator.h"

namespace jax_cxl::nccl {

// The calls between ncclGroupStart and ncclGroupEnd of one thread, over any
// number of communicators. A call outside of a group is a group of one.
//
// A communicator first runs its collectives, in the order in which they were
// added. Then it runs its sends and receives, side by side. No call starts
// before all communicators of the group are connected, so one thread can serve
// several GPUs.
class Group {
 public:
  // The group of the calling thread.
  static Group& OfThisThread();

  void Start() { ++depth_; }
  bool open() const { return depth_ > 0; }
  // Returns true if the next End runs the calls.
  bool outermost() const { return depth_ == 1; }

  // Checks the arguments at once, and executes the call at the end of the
  // group.
  Status Add(Communicator* communicator, const Operation& operation);
  // Runs at the end of the group on a thread of its own, at the same time as
  // the other openings. The group fails if one of them fails.
  Status AddOpening(std::function<Status()> open);

  // Ends the inner or the outer group. Fails with kInvalidArgument if none is
  // open.
  Status End();

  // Ends the group without running anything. Returns true if it had no calls
  // and no openings.
  bool Discard();

  // Called when a communicator ends: its calls must no longer run.
  void Forget(const Communicator* communicator);

 private:
  struct Work {
    Communicator* communicator = nullptr;
    std::vector<std::pair<Collective, Stream>> collectives;
    std::vector<Transfer> transfers;
  };

  Work& WorkOf(Communicator* communicator);
  Status Run();

  int depth_ = 0;
  Status error_;  // the first one of the group
  std::vector<std::function<Status()>> openings_;
  std::vector<Work> work_;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_GROUP_H_
