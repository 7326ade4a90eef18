#ifndef JAX_CXL_NCCL_CALLS_BATCHES_H_
#define JAX_CXL_NCCL_CALLS_BATCHES_H_

#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/calls/operation.h"

namespace jax_cxl::nccl {

// The transfers of a rank in one group of calls. The transfers of a batch run
// side by side. Batches run one after another.
using Batches = std::vector<std::vector<Transfer>>;

// Divides the transfers of `rank` into batches of at most `most` transfers;
// `most` is at least 2. Both ranks of a transfer put it into the batch with the
// same number, and no batch has two transfers of one channel. So the batches of
// all ranks never wait for each other in a circle, whatever a rank sends and
// receives. The first batch also has the transfers from the rank to itself,
// beyond `most`. Fails with kInvalidArgument if sends and receives of the rank
// with itself do not match.
Result<Batches> MakeBatches(const std::vector<Transfer>& transfers, int rank,
                            int size, int most);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_CALLS_BATCHES_H_
