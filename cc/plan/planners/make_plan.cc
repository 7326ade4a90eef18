#include "cc/plan/planners/make_plan.h"

#include <cstdint>
#include <limits>
#include <string_view>

#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {
namespace {

// With this limit, no sum or product that the planners compute overflows 64
// bits.
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 44;
// This limits the memory that a plan takes: about ten steps of 64 bytes for
// each round.
constexpr uint64_t kMaxRounds = uint64_t{1} << 22;

template <typename... Parts>
Status Invalid(const Parts&... parts) {
  return Error(Code::kInvalidArgument, parts...);
}

// Checks the numbers of rows. Executors count rows with 32-bit integers.
Status CheckRows(const Request& request) {
  const std::string_view op = OpName(request.op);
  const Rows& rows = request.rows;
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

// Checks what users choose. The callers ensure the rest.
Status Check(const Request& request, const Geometry& geometry) {
  const int n = request.num_ranks;
  if (request.count > kMaxBlockBytes / request.element_bytes) {
    return Invalid(OpName(request.op), ": count is ", request.count,
                   ", more than ", kMaxBlockBytes, " bytes");
  }
  if (MovesRows(request.op)) CXL_RETURN_IF_ERROR(CheckRows(request));
  // This is checked even for operations that do not need it, so that a geometry
  // is right for all operations of a group, or for none.
  const uint64_t least = n * geometry.part_alignment;
  if (geometry.slot_bytes >= least) return OkStatus();
  return Invalid("slot_bytes is ", geometry.slot_bytes, ", but ", n,
                 " ranks need at least ", least,
                 ": raise or unset JAX_CXL_SLOT_BYTES");
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
