#include "cc/plan/verify/expected_output.h"

#include <cstdint>

namespace jax_cxl::plan {

Extents ExpectedOutput(const Request& request, int rank) {
  const uint64_t block = request.count * request.element_bytes;
  const int n = request.num_ranks;
  const bool is_root = rank == request.root;
  Extents output;
  auto whole = [&](const Value& value) { output.Write(0, block, value); };
  auto each_rank = [&](uint64_t offset) {
    for (int r = 0; r < n; ++r) {
      output.Write(r * block, (r + 1) * block, Value::Input(r, offset));
    }
  };
  switch (request.op) {
    case Op::kBarrier:
      break;
    case Op::kAllGather:
    case Op::kTakeRows:
    case Op::kRaggedAllToAll: {
      each_rank(0);
      const uint64_t slices = request.rows.slice_bytes;
      for (int r = 0; r < n; ++r) {
        const uint64_t begin = n * block + r * slices;
        output.Write(begin, begin + slices, Value::Input(r, block));
      }
      break;
    }
    case Op::kAllReduce:
      whole(Value::Fold(0, n, 0));
      break;
    case Op::kReduceScatter:
      whole(Value::Fold(0, n, rank * block));
      break;
    case Op::kAllToAll:
      each_rank(rank * block);
      break;
    case Op::kBroadcast:
      whole(Value::Input(request.root, 0));
      break;
    case Op::kReduce:
      if (is_root) whole(Value::Fold(0, n, 0));
      break;
    case Op::kGather:
      if (is_root) each_rank(0);
      break;
    case Op::kScatter:
      whole(Value::Input(request.root, rank * block));
      break;
    case Op::kPermute: {
      const int source = request.sources[rank];
      whole(source < 0 ? Value::Zero() : Value::Input(source, 0));
      break;
    }
    case Op::kScan:
      whole(request.reverse ? Value::Fold(rank, n, 0)
                            : Value::Fold(0, rank + 1, 0));
      break;
    case Op::kExscan:
      if (request.reverse && rank + 1 < n) whole(Value::Fold(rank + 1, n, 0));
      if (!request.reverse && rank > 0) whole(Value::Fold(0, rank, 0));
      break;
  }
  return output;
}

}  // namespace jax_cxl::plan
