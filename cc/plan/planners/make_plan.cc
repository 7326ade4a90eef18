#include "cc/plan/planners/make_plan.h"

#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {
namespace {

// With these limits, no sum or product of the planners overflows 64 bits.
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 44;
constexpr int kMaxRanks = 1 << 16;
// A plan is stored in memory, with about ten steps of 64 bytes per round.
constexpr uint64_t kMaxRounds = uint64_t{1} << 22;

template <typename... Parts>
Status Invalid(const Parts&... parts) {
  return Error(Code::kInvalidArgument, parts...);
}

Status CheckSources(const Request& request) {
  const std::vector<int32_t>& sources = request.sources;
  const int n = request.num_ranks;
  if (sources.size() != static_cast<size_t>(n)) {
    return Invalid("permute: sources has ", sources.size(),
                   " entries, there are ", n, " ranks");
  }
  std::vector<int> receiver(n, -1);
  for (int r = 0; r < n; ++r) {
    const int source = sources[r];
    if (source < -1 || source >= n) {
      return Invalid("permute: sources[", r, "] is ", source,
                     ", not -1 or a rank below ", n);
    }
    if (source < 0) continue;
    if (receiver[source] >= 0) {
      return Invalid("permute: rank ", source, " is the source of both rank ",
                     receiver[source], " and rank ", r);
    }
    receiver[source] = r;
  }
  return OkStatus();
}

// Executors count rows with 32-bit integers.
Status CheckRows(const Request& request) {
  const std::string_view op = OpName(request.op);
  const Rows& rows = request.rows;
  if (request.count > 0 &&
      (rows.table == 0 || request.count % rows.table != 0)) {
    return Invalid(op, ": ", request.count, " elements are not ", rows.table,
                   " rows");
  }
  constexpr uint64_t kMostRows = std::numeric_limits<int32_t>::max();
  if (rows.table > kMostRows / request.num_ranks || rows.taken > kMostRows) {
    return Invalid(op, ": ", rows.table, " rows of each rank and ", rows.taken,
                   " rows of the output: all ranks together, and the output, "
                   "must each have fewer than 2**31");
  }
  constexpr uint64_t kMostSlices = uint64_t{1} << 24;
  if (request.op == Op::kRaggedAllToAll &&
      (rows.slices < 1 || rows.slices > kMostSlices / request.num_ranks)) {
    return Invalid(op, ": ", rows.slices, " slices for each rank, not in [1, ",
                   kMostSlices / request.num_ranks, "]");
  }
  return OkStatus();
}

Status CheckGeometry(const Geometry& geometry, int num_ranks) {
  if (geometry.num_slots < 2) {
    return Invalid("num_slots is ", geometry.num_slots,
                   ", at least 2 are needed");
  }
  if (geometry.slot_bytes % kSlotAlignment != 0) {
    return Invalid("slot_bytes is ", geometry.slot_bytes,
                   ", not a multiple of ", kSlotAlignment);
  }
  // Checked for every operation, so that a group works for all or for none.
  if (geometry.part_alignment == 0 ||
      geometry.part_alignment % kSlotAlignment != 0) {
    return Invalid("part_alignment is ", geometry.part_alignment,
                   ", not a multiple of ", kSlotAlignment);
  }
  const uint64_t least = num_ranks * geometry.part_alignment;
  if (geometry.slot_bytes < least) {
    return Invalid("slot_bytes is ", geometry.slot_bytes, ", ", num_ranks,
                   " ranks need at least ", least,
                   ": raise or unset JAX_CXL_SLOT_BYTES");
  }
  return OkStatus();
}

Status Check(const Request& request, const Geometry& geometry) {
  const int n = request.num_ranks;
  if (static_cast<int>(request.op) >= kNumOps) {
    return Invalid("op is ", static_cast<int>(request.op), ", there are ",
                   kNumOps);
  }
  const std::string_view op = OpName(request.op);
  if (n < 1 || n > kMaxRanks) {
    return Invalid(op, ": num_ranks is ", n, ", not in [1, ", kMaxRanks, "]");
  }
  if (request.rank < 0 || request.rank >= n) {
    return Invalid(op, ": rank is ", request.rank, ", not in [0, ", n, ")");
  }
  if (HasRoot(request.op) && (request.root < 0 || request.root >= n)) {
    return Invalid(op, ": root is ", request.root, ", not in [0, ", n, ")");
  }
  if (request.element_bytes < 1 || request.element_bytes > 16) {
    return Invalid(op, ": element_bytes is ", request.element_bytes,
                   ", not in [1, 16]");
  }
  if (request.count > kMaxBlockBytes / request.element_bytes) {
    return Invalid(op, ": count is ", request.count, ", more than ",
                   kMaxBlockBytes, " bytes");
  }
  if (request.op == Op::kBarrier && request.count != 0) {
    return Invalid("barrier: count is ", request.count, ", not 0");
  }
  if (request.op == Op::kPermute) CXL_RETURN_IF_ERROR(CheckSources(request));
  if (MovesRows(request.op)) CXL_RETURN_IF_ERROR(CheckRows(request));
  return CheckGeometry(geometry, n);
}

// A group of one rank: the rank moves its own block.
Plan PlanAlone(Planner planner) {
  const Request& request = planner.request();
  if (request.op == Op::kPermute && request.sources[0] < 0) {
    planner.Zero(0, planner.block());
  } else if (request.op != Op::kExscan) {
    planner.Copy(0, 0, planner.block());
  }
  return std::move(planner).Finish(1);
}

Plan Dispatch(Planner planner) {
  const Request& request = planner.request();
  if (request.op == Op::kBarrier) return PlanBarrier(std::move(planner));
  if (request.count == 0) return std::move(planner).Finish(1);
  if (request.num_ranks == 1) return PlanAlone(std::move(planner));
  using PlanFunction = Plan (*)(Planner);
  static constexpr PlanFunction kPlanners[] = {
#define ROW(constant, name, planner, ...) planner,
      JAX_CXL_OPERATIONS(ROW)
#undef ROW
  };
  return kPlanners[static_cast<size_t>(request.op)](std::move(planner));
}

}  // namespace

Result<Plan> MakePlan(const Request& request, const Geometry& geometry) {
  CXL_RETURN_IF_ERROR(Check(request, geometry));
  const Planner planner(request, geometry);
  // Every plan has at least one round for each slot that a block fills.
  const uint64_t rounds = planner.block() / geometry.slot_bytes;
  if (rounds > kMaxRounds) {
    return Error(Code::kResourceExhausted, OpName(request.op), ": ",
                 planner.block(), " bytes through slots of ",
                 geometry.slot_bytes, " take more than ", kMaxRounds,
                 " rounds; use larger slots (JAX_CXL_SLOT_BYTES, or a larger "
                 "size= of the pool)");
  }
  return Dispatch(planner);
}

}  // namespace jax_cxl::plan
