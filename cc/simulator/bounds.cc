#include "cc/simulator/bounds.h"

#include <algorithm>

namespace jax_cxl::plan {

PoolBytes LowerBound(const Request& request) {
  const uint64_t n = request.num_ranks, rank = request.rank;
  const uint64_t block = request.count * request.element_bytes;
  const uint64_t others = (n - 1) * block;
  const bool is_root = request.rank == request.root;
  if (n == 1) return {};
  switch (request.op) {
    case Op::kAllReduce:
      // Each rank reduces 1/n of the elements. It reads these elements from the
      // inputs of all other ranks. Then it reads the elements that the others
      // have reduced.
      return {.written = block, .read = 2 * others / n};
    case Op::kReduce:
      // With two ranks the root itself reduces. With more ranks, the others
      // reduce and the root reads their results.
      if (n == 2) return is_root ? PoolBytes{0, block} : PoolBytes{block, 0};
      return {.written = block, .read = block};
    case Op::kPermute: {
      const auto& sources = request.sources;
      const int source = sources[rank];
      const bool sends =
          source != request.rank && std::find(sources.begin(), sources.end(),
                                              request.rank) != sources.end();
      const bool receives = source >= 0 && source != request.rank;
      return {.written = sends ? block : 0, .read = receives ? block : 0};
    }
    case Op::kScan:
    case Op::kExscan: {
      const uint64_t needed = request.reverse ? n - 1 - rank : rank;
      const bool sends = request.reverse ? rank > 0 : rank + 1 < n;
      return {.written = sends ? block : 0, .read = needed * block};
    }
    default: {
      // For operations that move rows, the bound assumes that every row goes to
      // all ranks.
      const Traits& traits = TraitsOf(request.op);
      const bool one = traits.output == Blocks::kOne && !Reduces(request.op);
      PoolBytes bytes = {
          .written = traits.input == Blocks::kEach ? others : block,
          .read = one ? block : others};
      // In a rooted operation the root only writes or only reads, and the other
      // ranks do the opposite.
      if (traits.root != Root::kNone) {
        const bool writes = (traits.root == Root::kSource) == is_root;
        (writes ? bytes.read : bytes.written) = 0;
      }
      return bytes;
    }
  }
}

}  // namespace jax_cxl::plan
