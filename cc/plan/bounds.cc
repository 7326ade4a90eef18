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
    case Op::kTakeRows:  // if every row is taken
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
    case Op::kRaggedAllToAll: {
      const Ragged& ragged = request.ragged;
      const uint64_t entries = n * ragged.slices;
      PoolBytes bytes;
      for (uint64_t peer = 0; peer < n; ++peer) {
        if (peer == rank) continue;
        for (uint64_t s = 0; s < ragged.slices; ++s) {
          const uint64_t k = peer * ragged.slices + s;
          const int64_t* table = &ragged.tables[rank * 4 * entries];
          bytes.written += table[entries + k] * block;
          bytes.read += table[3 * entries + k] * block;
        }
      }
      return bytes;
    }
  }
  return {};
}

}  // namespace jax_cxl::plan
