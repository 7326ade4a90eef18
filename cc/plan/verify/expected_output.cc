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
      each_rank(0);
      break;
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
    case Op::kRaggedAllToAll: {
      const Ragged& ragged = request.ragged;
      const uint64_t entries = n * ragged.slices;
      for (int sender = 0; sender < n; ++sender) {
        const int64_t* table = &ragged.tables[sender * 4 * entries];
        for (uint64_t s = 0; s < ragged.slices; ++s) {
          const uint64_t k = rank * ragged.slices + s;
          const uint64_t from = table[k] * block;
          const uint64_t to = table[2 * entries + k] * block;
          output.Write(to, to + table[entries + k] * block,
                       Value::Input(sender, from));
        }
      }
      break;
    }
  }
  return output;
}

}  // namespace jax_cxl::plan
