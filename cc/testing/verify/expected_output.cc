#include "cc/testing/verify/expected_output.h"

#include <cstdint>

namespace jax_cxl::plan {

Extents ExpectedOutput(const Request& request, int rank) {
  const uint64_t block = request.count * request.element_bytes;
  const int n = request.num_ranks;
  Extents output;
  auto whole = [&](const Value& value) { output.Write(0, block, value); };
  auto each_rank = [&](uint64_t offset) {
    for (int r = 0; r < n; ++r) {
      output.Write(r * block, (r + 1) * block, Value::Input(r, offset));
    }
  };
  switch (request.op) {
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
    default: {
      // For the other operations, the table of Traits determines the result.
      const Traits& traits = TraitsOf(request.op);
      if (traits.root == Root::kDestination && rank != request.root) break;
      // The byte of an input at which the block for this rank starts.
      const uint64_t offset = traits.input == Blocks::kEach ? rank * block : 0;
      if (Reduces(request.op)) {
        whole(Value::Fold(0, n, offset));
      } else if (traits.root == Root::kSource) {
        whole(Value::Input(request.root, offset));
      } else {
        each_rank(offset);
      }
      // If tables of slices travel with the rows, they come after all rows in
      // the output.
      const uint64_t slices = request.rows.slice_bytes;
      for (int r = 0; r < n; ++r) {
        const uint64_t begin = n * block + r * slices;
        output.Write(begin, begin + slices, Value::Input(r, block));
      }
    }
  }
  return output;
}

}  // namespace jax_cxl::plan
