#include "cc/plan/planners/make_plan.h"

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {
namespace {

// With these limits, no sum or product that the planners compute overflows 64
// bits.
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 44;
constexpr int kMaxRanks = 1 << 16;
// This limits the memory that a plan takes: about ten steps of 64 bytes for
// each round.
constexpr uint64_t kMaxRounds = uint64_t{1} << 22;

template <typename... Parts>
Status Invalid(const Parts&... parts) {
  return Error(Code::kInvalidArgument, parts...);
}

template <typename T>
Status CheckRange(Op op, const char* field, T value, T least, T most) {
  if (value >= least && value <= most) return OkStatus();
  return Invalid(OpName(op), ": ", field, " is ", value, ", not in [", least,
                 ", ", most, "]");
}

Status CheckSources(const Request& request) {
  const std::vector<int32_t>& sources = request.sources;
  const int n = request.num_ranks;
  if (sources.size() != static_cast<size_t>(n)) {
    return Invalid("permute: sources has ", sources.size(),
                   " entries, but there are ", n, " ranks");
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

// Checks the numbers of rows. Executors count rows with 32-bit integers.
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
    return Invalid(op, ": ", request.num_ranks, " ranks have ", rows.table,
                   " rows each, and the output has ", rows.taken,
                   " rows. The rows of all ranks together, and the rows of the "
                   "output, must each be fewer than 2**31: make several calls");
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
                   ", but at least 2 are needed");
  }
  if (geometry.slot_bytes % kSlotAlignment != 0) {
    return Invalid("slot_bytes is ", geometry.slot_bytes,
                   ", not a multiple of ", kSlotAlignment);
  }
  // The following is checked even for operations that do not need it, so that a
  // geometry is right for all operations of a group, or for none.
  if (geometry.part_alignment == 0 ||
      geometry.part_alignment % kSlotAlignment != 0) {
    return Invalid("part_alignment is ", geometry.part_alignment,
                   ", not a multiple of ", kSlotAlignment);
  }
  const uint64_t least = num_ranks * geometry.part_alignment;
  if (geometry.slot_bytes < least) {
    return Invalid("slot_bytes is ", geometry.slot_bytes, ", but ", num_ranks,
                   " ranks need at least ", least,
                   ": raise or unset JAX_CXL_SLOT_BYTES");
  }
  return OkStatus();
}

Status Check(const Request& request, const Geometry& geometry) {
  const Op op = request.op;
  const int n = request.num_ranks;
  if (static_cast<int>(op) >= kNumOps) {
    return Invalid("op is ", static_cast<int>(op), ", but must be less than ",
                   kNumOps);
  }
  CXL_RETURN_IF_ERROR(CheckRange(op, "num_ranks", n, 1, kMaxRanks));
  CXL_RETURN_IF_ERROR(CheckRange(op, "rank", request.rank, 0, n - 1));
  if (HasRoot(op)) {
    CXL_RETURN_IF_ERROR(CheckRange(op, "root", request.root, 0, n - 1));
  }
  CXL_RETURN_IF_ERROR(
      CheckRange(op, "element_bytes", request.element_bytes, 1u, 16u));
  if (request.count > kMaxBlockBytes / request.element_bytes) {
    return Invalid(OpName(op), ": count is ", request.count, ", more than ",
                   kMaxBlockBytes, " bytes");
  }
  if (op == Op::kBarrier && request.count != 0) {
    return Invalid("barrier: count is ", request.count, ", not 0");
  }
  if (op == Op::kPermute) CXL_RETURN_IF_ERROR(CheckSources(request));
  if (MovesRows(op)) CXL_RETURN_IF_ERROR(CheckRows(request));
  return CheckGeometry(geometry, n);
}

// The plan of a group of one rank, which only moves its own block.
uint64_t PlanAlone(Planner& planner) {
  const Request& request = planner.request();
  if (request.op == Op::kPermute && request.sources[0] < 0) {
    planner.Zero(0, planner.block());
  } else if (request.op != Op::kExscan) {
    planner.Copy(0, 0, planner.block());
  }
  return 1;
}

uint64_t Dispatch(Planner& planner) {
  const Request& request = planner.request();
  if (request.op == Op::kBarrier) return PlanBarrier(planner);
  if (request.count == 0) return 1;
  if (request.num_ranks == 1) return PlanAlone(planner);
  static constexpr uint64_t (*kPlanners[])(Planner&) = {
#define ROW(constant, name, planner, ...) planner,
      JAX_CXL_OPERATIONS(ROW)
#undef ROW
  };
  return kPlanners[static_cast<size_t>(request.op)](planner);
}

}  // namespace

Result<Plan> MakePlan(const Request& request, const Geometry& geometry) {
  CXL_RETURN_IF_ERROR(Check(request, geometry));
  Planner planner(request, geometry);
  // Every plan has at least this many rounds, one for each slot that a block
  // fills.
  const uint64_t rounds = planner.block() / geometry.slot_bytes;
  if (rounds > kMaxRounds) {
    return Error(Code::kResourceExhausted, OpName(request.op), ": ",
                 planner.block(), " bytes fill more than ", kMaxRounds,
                 " slots of ", geometry.slot_bytes,
                 " bytes, the most of one call; use larger slots "
                 "(JAX_CXL_SLOT_BYTES, or a larger size= of the pool)");
  }
  return planner.Finish(Dispatch(planner));
}

}  // namespace jax_cxl::plan
