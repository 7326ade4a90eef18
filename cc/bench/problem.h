#ifndef JAX_CXL_BENCH_PROBLEM_H_
#define JAX_CXL_BENCH_PROBLEM_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "cc/bench/team.h"
#include "cc/plan/plan.h"

namespace jax_cxl::comm {

// One collective, with its own buffers of float32. The values are small
// integers, so that all sums are exact.
struct Problem {
  plan::Request request;
  uint64_t bytes = 0;  // message size by NCCL's convention
  std::vector<float> input;
  std::vector<float> output;
};

// The output holds this value before a call. No collective returns it.
inline constexpr float kUnwritten = -1;

inline float Value(int rank, uint64_t position) {
  return static_cast<float>(
      ((static_cast<uint32_t>(position) * 2654435761u >> 13) + 5 * rank) % 4);
}

inline Problem MakeProblem(plan::Op op, uint64_t bytes, const Team& team) {
  const uint64_t n = team.size();
  Problem problem;
  plan::Request& request = problem.request;
  request.op = op;
  request.num_ranks = team.size();
  request.rank = team.rank();
  request.element_bytes = sizeof(float);
  const bool whole = op == plan::Op::kAllReduce || op == plan::Op::kReduce ||
                     op == plan::Op::kBroadcast;
  if (op != plan::Op::kBarrier)
    request.count =
        std::max<uint64_t>(1, bytes / sizeof(float) / (whole ? 1 : n));
  problem.input.resize(plan::InputBytes(request) / sizeof(float));
  problem.output.assign(plan::OutputBytes(request) / sizeof(float), kUnwritten);
  problem.bytes =
      std::max(plan::InputBytes(request), plan::OutputBytes(request));
  for (size_t i = 0; i < problem.input.size(); ++i)
    problem.input[i] = Value(team.rank(), i);
  return problem;
}

// Returns the number of wrong elements in the output. Then fills the output
// with kUnwritten, so that the next check finds elements that no call writes.
inline uint64_t CountWrong(Problem* problem) {
  const plan::Request& request = problem->request;
  const uint64_t count = request.count;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < problem->output.size(); ++i) {
    const uint64_t within = i % count;
    const uint64_t mine = request.rank * count + within;
    const bool root = request.rank == request.root;
    float expected = 0;
    switch (request.op) {
      case plan::Op::kGather:
        if (!root) {
          expected = kUnwritten;
          break;
        }
        [[fallthrough]];
      case plan::Op::kAllGather:
        expected = Value(static_cast<int>(i / count), within);
        break;
      case plan::Op::kAllToAll:
        expected = Value(static_cast<int>(i / count), mine);
        break;
      case plan::Op::kBroadcast:
        expected = Value(0, i);
        break;
      case plan::Op::kScatter:
        expected = Value(request.root, mine);
        break;
      case plan::Op::kReduce:
        if (!root) {
          expected = kUnwritten;
          break;
        }
        [[fallthrough]];
      default:
        for (int rank = 0; rank < request.num_ranks; ++rank)
          expected +=
              Value(rank, request.op == plan::Op::kReduceScatter ? mine : i);
    }
    wrong += std::bit_cast<uint32_t>(problem->output[i]) !=
             std::bit_cast<uint32_t>(expected);
    problem->output[i] = kUnwritten;
  }
  return wrong;
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_BENCH_PROBLEM_H_
