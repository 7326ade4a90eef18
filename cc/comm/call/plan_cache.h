#ifndef JAX_CXL_COMM_CALL_PLAN_CACHE_H_
#define JAX_CXL_COMM_CALL_PLAN_CACHE_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/plan/plan.h"
#include "cc/pool/layout/channel_layout.h"

namespace jax_cxl::comm {

// How a rank executes all calls that have the same descriptor and the same
// sources.
struct CallPlan {
  pool::CallDescriptor descriptor;
  plan::Plan plan;
  // True if the plan has only one round and the submission carries that round's
  // payload. The data are then in the pool as soon as the rank has started the
  // call.
  bool eager = false;
  uint32_t payload_bytes = 0;  // sent by this rank, if the plan is eager
};

// The plans of one channel. The cache makes one plan for each kind of call.
// Each member has a cache of its own. The members' plans for a call differ only
// in the rank.
//
// Not thread-safe.
class PlanCache {
 public:
  // Submissions carry payloads of up to `payload_bytes`. Calls with more data
  // use rings, whose slots have the sizes in `geometry`.
  PlanCache(const plan::Geometry& geometry, uint64_t payload_bytes);

  // Returns the plan for calls of the same kind as `call`. Makes the plan if
  // there is none yet. Errors: those of plan::MakePlan.
  Result<std::shared_ptr<const CallPlan>> Find(const Call& call);
  void Clear() {
    made_.clear();
    last_ = nullptr;
  }

 private:
  struct Kind {
    pool::CallDescriptor descriptor;
    std::vector<int32_t> sources;  // compared, because hashes may collide

    bool operator==(const Kind&) const = default;
  };
  struct HashKind {
    size_t operator()(const Kind& kind) const {
      return HashDescriptor(kind.descriptor, 0);
    }
  };

  Result<std::shared_ptr<const CallPlan>> Make(const Call& call) const;

  plan::Geometry geometry_;
  plan::Geometry eager_;  // here a submission serves as a slot
  std::unordered_map<Kind, std::shared_ptr<const CallPlan>, HashKind> made_;
  // The kind of call that Find last looked up, and its plan. Programs are
  // loops, so they often look up the same kind again.
  Kind wanted_;
  std::shared_ptr<const CallPlan> last_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_PLAN_CACHE_H_
