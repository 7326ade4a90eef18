#include "cc/simulator/run.h"

#include <algorithm>
#include <utility>

#include "cc/plan/planners/make_plan.h"
#include "cc/simulator/placement.h"
#include "cc/simulator/simulator.h"

namespace jax_cxl::sim {
namespace {

using plan::Step;
using plan::StepKind;

Result<Report> Run(const TaskGraph& graph, const Machine& machine) {
  const Resources resources(machine);
  CXL_ASSIGN_OR_RETURN(const Outcome outcome, Simulate(resources, graph));
  Report report;
  report.seconds = outcome.seconds;
  report.busy = outcome.busy;
  if (outcome.busiest >= 0) report.busiest = resources.Name(outcome.busiest);
  return report;
}

// Returns how many elements of a block one round carries at most. Returns 0 if
// the call takes at most `few_rounds` rounds.
Result<uint64_t> CountPerRound(plan::Request request, plan::Geometry geometry,
                               uint64_t few_rounds) {
  geometry.min_chunk_bytes = 0;  // long calls fill their slots
  const uint64_t probe = 2 * geometry.slot_bytes / request.element_bytes;
  if (request.count <= probe) return uint64_t{0};
  const uint64_t count = std::exchange(request.count, probe);
  request.rank = 0;
  CXL_ASSIGN_OR_RETURN(const plan::Plan plan,
                       plan::MakePlan(request, geometry));
  const uint64_t per_round = probe / plan.rounds;
  return count / per_round <= few_rounds ? 0 : per_round;
}

}  // namespace

Result<Report> RunPlans(const plan::Request& request,
                        const plan::Geometry& geometry, const Machine& machine,
                        const Costs& costs, const LowerOptions& options,
                        uint64_t sample_rounds) {
  auto run = [&](uint64_t count) -> Result<Report> {
    plan::Request part = request;
    part.count = count;
    CXL_ASSIGN_OR_RETURN(const TaskGraph graph,
                         Lower(part, geometry, machine, costs, options));
    return Run(graph, machine);
  };
  uint64_t per_round = 0;
  if (sample_rounds > 0) {
    CXL_ASSIGN_OR_RETURN(per_round,
                         CountPerRound(request, geometry, 3 * sample_rounds));
  }
  if (per_round == 0) return run(request.count);
  const uint64_t half = per_round * sample_rounds;
  CXL_ASSIGN_OR_RETURN(const Report first, run(half));
  CXL_ASSIGN_OR_RETURN(Report report, run(2 * half));
  const double rest =
      static_cast<double>(request.count - 2 * half) / static_cast<double>(half);
  report.seconds += rest * (report.seconds - first.seconds);
  report.sampled = true;
  return report;
}

Result<Counted> CountBytes(plan::Request request,
                           const plan::Geometry& geometry,
                           const plan::Stripes& stripes, int cards) {
  if (cards < 1)
    return Error(Code::kInvalidArgument, "cards is ", cards,
                 ", but must be at least 1");
  Counted counted;
  const Placement placement(geometry, stripes, request.num_ranks, cards);
  std::vector<uint64_t> written(cards), read(cards);
  for (request.rank = 0; request.rank < request.num_ranks; ++request.rank) {
    CXL_ASSIGN_OR_RETURN(const plan::Plan plan,
                         plan::MakePlan(request, geometry));
    plan::PoolBytes moved;
    auto write = [&](uint64_t round, const Step& step) {
      moved.written += step.bytes;
      placement.Add(request.rank, round, step.to, step.bytes, written);
    };
    auto read_from = [&](int peer, const Step& step) {
      if (peer == request.rank) return;
      moved.read += step.bytes;
      placement.Add(peer, step.round, step.from, step.bytes, read);
    };
    for (const Step& step : plan.steps) {
      switch (step.kind) {
        case StepKind::kPut:
        case StepKind::kPutOutput:
          write(step.round, step);
          break;
        case StepKind::kGet:
          read_from(step.peer, step);
          break;
        case StepKind::kReduceToSlot:
          write(step.to_round, step);
          [[fallthrough]];
        case StepKind::kReduce:
          for (int peer = step.first; peer < step.last; ++peer) {
            read_from(peer, step);
          }
          break;
        default:
          break;
      }
    }
    auto& most = counted.most_by_rank;
    most.written = std::max(most.written, moved.written);
    most.read = std::max(most.read, moved.read);
    counted.all.written += moved.written;
    counted.all.read += moved.read;
  }
  counted.most_by_card = {std::ranges::max(written), std::ranges::max(read)};
  return counted;
}

}  // namespace jax_cxl::sim
