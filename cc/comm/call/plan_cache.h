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

// How a rank executes all calls of one kind.
struct CallPlan {
  pool::CallDescriptor descriptor;
  plan::Plan plan;
  // The plan has one round, whose payload travels in the submission: it is
  // there as soon as the rank has started the call.
  bool eager = false;
  uint32_t payload_bytes = 0;  // that this rank sends, if the plan is eager
};

// The plans of one channel, made once for each kind of call. Equal on all
// members but for their ranks.
//
// Not thread-safe.
class PlanCache {
 public:
  // Submissions carry up to `payload_bytes`; everything else goes through rings
  // of `geometry`.
  PlanCache(const plan::Geometry& geometry, uint64_t payload_bytes);

  // The plan of calls like this one, made now if it is new.
  // Errors: those of plan::MakePlan.
  Result<std::shared_ptr<const CallPlan>> Find(const Call& call);

 private:
  struct Kind {
    pool::CallDescriptor descriptor;
    std::vector<int32_t> sources;  // a hash of them may collide

    bool operator==(const Kind&) const = default;
  };
  struct HashKind {
    size_t operator()(const Kind& kind) const;
  };

  Result<std::shared_ptr<const CallPlan>> Make(const Call& call) const;

  plan::Geometry geometry_;
  plan::Geometry eager_;  // in which a submission is a slot
  std::unordered_map<Kind, std::shared_ptr<const CallPlan>, HashKind> made_;
  // The kind that was asked for last: programs are mostly loops.
  Kind wanted_;
  std::shared_ptr<const CallPlan> last_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_PLAN_CACHE_H_
