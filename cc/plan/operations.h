#ifndef JAX_CXL_PLAN_OPERATIONS_H_
#define JAX_CXL_PLAN_OPERATIONS_H_

#include <cstdint>
#include <iterator>
#include <string_view>

// The table of operations, with a row for each. It determines the enumeration
// Op, the sizes of buffers, which planner runs, the result that the verifier
// expects, and the traits that Python reads (jax_cxl/_lowering/contract.py).
//
// Call descriptors in the pool name an operation by the position of its row. So
// append rows, and never move them.
namespace jax_cxl::plan {

// How many blocks of `count` elements a buffer holds.
enum class Blocks : uint8_t {
  kOne,
  kEach,  // one for each rank, in the order of the ranks
  kRows,  // rows of blocks (plan.h)
};

// What the root does.
enum class Root : uint8_t {
  kNone,         // there is no root
  kSource,       // only the root's input is read
  kDestination,  // only the root's output is defined
};

// Whether elements of several ranks are combined into one.
enum class Combines : bool { kNo, kYes };

// clang-format off
#define JAX_CXL_OPERATIONS(ROW) \
  /*  constant         name                 planner             input   output  root          combines */ \
  ROW(kBarrier,        "barrier",           PlanBarrier,        kOne,   kOne,   kNone,        kNo)  \
  ROW(kAllGather,      "all_gather",        PlanAllGather,      kOne,   kEach,  kNone,        kNo)  \
  ROW(kAllReduce,      "all_reduce",        PlanAllReduce,      kOne,   kOne,   kNone,        kYes) \
  ROW(kReduceScatter,  "reduce_scatter",    PlanReduceScatter,  kEach,  kOne,   kNone,        kYes) \
  ROW(kAllToAll,       "all_to_all",        PlanAllToAll,       kEach,  kEach,  kNone,        kNo)  \
  ROW(kBroadcast,      "broadcast",         PlanBroadcast,      kOne,   kOne,   kSource,      kNo)  \
  ROW(kReduce,         "reduce",            PlanReduce,         kOne,   kOne,   kDestination, kYes) \
  ROW(kGather,         "gather",            PlanGather,         kOne,   kEach,  kDestination, kNo)  \
  ROW(kScatter,        "scatter",           PlanScatter,        kEach,  kOne,   kSource,      kNo)  \
  ROW(kPermute,        "permute",           PlanPermute,        kOne,   kOne,   kNone,        kNo)  \
  ROW(kScan,           "scan",              PlanScan,           kOne,   kOne,   kNone,        kYes) \
  ROW(kExscan,         "exscan",            PlanScan,           kOne,   kOne,   kNone,        kYes) \
  ROW(kRaggedAllToAll, "ragged_all_to_all", PlanRows,           kOne,   kRows,  kNone,        kNo)  \
  ROW(kTakeRows,       "take_rows",         PlanRows,           kOne,   kRows,  kNone,        kNo)
// clang-format on

enum class Op : uint8_t {
#define ROW(constant, ...) constant,
  JAX_CXL_OPERATIONS(ROW)
#undef ROW
};

// A row of JAX_CXL_OPERATIONS, without the planner.
struct Traits {
  std::string_view name;
  Blocks input = Blocks::kOne;
  Blocks output = Blocks::kOne;
  Root root = Root::kNone;
  Combines combines = Combines::kNo;
};

inline constexpr Traits kOperations[] = {
#define ROW(constant, name, planner, input, output, root, combines) \
  {name, Blocks::input, Blocks::output, Root::root, Combines::combines},
    JAX_CXL_OPERATIONS(ROW)
#undef ROW
};
inline constexpr int kNumOps = std::size(kOperations);
inline constexpr Traits kUnknownOperation = {.name = "unknown op"};

// Returns the row of an operation, or kUnknownOperation for any other value.
constexpr const Traits& TraitsOf(Op op) {
  const auto index = static_cast<int>(op);
  return index < kNumOps ? kOperations[index] : kUnknownOperation;
}

constexpr std::string_view OpName(Op op) { return TraitsOf(op).name; }
constexpr bool HasRoot(Op op) { return TraitsOf(op).root != Root::kNone; }
constexpr bool Reduces(Op op) {
  return TraitsOf(op).combines == Combines::kYes;
}
constexpr bool MovesRows(Op op) { return TraitsOf(op).output == Blocks::kRows; }

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_OPERATIONS_H_
