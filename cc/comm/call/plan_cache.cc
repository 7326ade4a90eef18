#include "cc/comm/call/plan_cache.h"

#include <limits>
#include <utility>

#include "cc/engine/cpu/one_round.h"
#include "cc/plan/planners/make_plan.h"

namespace jax_cxl::comm {
namespace {

constexpr size_t kMaxPlans = 256;
constexpr size_t kMaxCachedSteps = 1 << 16;

}  // namespace

PlanCache::PlanCache(const plan::Geometry& geometry, uint64_t payload_bytes)
    : geometry_(geometry),
      eager_{.slot_bytes = payload_bytes,
             .num_slots = 2,
             .all_read_bytes = std::numeric_limits<uint64_t>::max()} {}

Result<std::shared_ptr<const CallPlan>> PlanCache::Find(const Call& call) {
  // `wanted_` is a member so that all calls of Find can reuse the memory of the
  // vector `wanted_.sources`.
  wanted_.descriptor = Describe(call);
  if (last_ && wanted_.descriptor == last_->descriptor &&
      wanted_.sources == call.request.sources)
    return last_;
  wanted_.sources = call.request.sources;
  last_ = nullptr;
  if (auto found = made_.find(wanted_); found != made_.end())
    return last_ = found->second;
  CXL_ASSIGN_OR_RETURN(std::shared_ptr<const CallPlan> call_plan, Make(call));
  if (call_plan->plan.steps.size() <= kMaxCachedSteps) {
    // A program repeats its collectives in every step. If the cache holds
    // kMaxPlans kinds of calls, the program's shapes keep changing, and old
    // kinds are unlikely to recur. So drop them all.
    if (made_.size() == kMaxPlans) made_.clear();
    made_[wanted_] = call_plan;
    last_ = call_plan;
  }
  return call_plan;
}

Result<std::shared_ptr<const CallPlan>> PlanCache::Make(
    const Call& call) const {
  auto call_plan = std::make_shared<CallPlan>();
  call_plan->descriptor = Describe(call);
  const auto ranks = static_cast<uint64_t>(call.request.num_ranks);
  // A rank makes the payload of an eager call when it starts the call, from its
  // own input alone. A call in levels (a call with `buffers`) reads the inputs
  // of several ranks, so it is never eager.
  if (call.buffers == nullptr &&
      plan::InputBytes(call.request) <= ranks * eager_.slot_bytes &&
      ranks * plan::kSlotAlignment <= eager_.slot_bytes) {
    CXL_ASSIGN_OR_RETURN(call_plan->plan, plan::MakePlan(call.request, eager_));
    call_plan->eager = cpu::IsOneRound(call_plan->plan);
    call_plan->payload_bytes =
        static_cast<uint32_t>(cpu::PayloadBytes(call_plan->plan));
  }
  if (!call_plan->eager) {
    CXL_ASSIGN_OR_RETURN(call_plan->plan,
                         plan::MakePlan(call.request, geometry_));
  }
  return {std::move(call_plan)};
}

}  // namespace jax_cxl::comm
