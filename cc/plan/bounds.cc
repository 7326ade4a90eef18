#include "cc/plan/bounds.h"

#include <algorithm>

namespace jax_cxl::plan {

PoolBytes LowerBound(const Request& request) {
  const uint64_t n = request.num_ranks, rank = request.rank;
  const uint64_t block = request.count * request.element_bytes;
  const uint64_t others = (n - 1) * block;
  const bool is_root = request.rank == request.root;
  if (n == 1) return {};
  switch (request.op) {
    case Op::kBarrier:
      return {};
    case Op::kAllGather:
    case Op::kTakeRows:        // if every row is taken
    case Op::kRaggedAllToAll:  // if every row is sent to all ranks
      return {.written = block, .read = others};
    case Op::kAllReduce:
      // A rank reads the inputs of its share and the reduced shares of the
      // others.
      return {.written = block, .read = 2 * others / n};
    case Op::kReduceScatter:
    case Op::kAllToAll:
      return {.written = others, .read = others};
    case Op::kBroadcast:
      return is_root ? PoolBytes{block, 0} : PoolBytes{0, block};
    case Op::kReduce:
      // With two ranks the root reduces. With more, the other ranks reduce for
      // it.
      if (n == 2) return is_root ? PoolBytes{0, block} : PoolBytes{block, 0};
      return {.written = block, .read = block};
    case Op::kGather:
      return is_root ? PoolBytes{0, others} : PoolBytes{block, 0};
    case Op::kScatter:
      return is_root ? PoolBytes{others, 0} : PoolBytes{0, block};
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
  }
  return {};
}

}  // namespace jax_cxl::plan
