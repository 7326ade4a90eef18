#ifndef JAX_CXL_NCCL_LIBRARY_OPENING_H_
#define JAX_CXL_NCCL_LIBRARY_OPENING_H_

#include "cc/base/status.h"
#include "cc/nccl/communicator.h"
#include "cc/nccl/interface/config.h"
#include "cc/nccl/interface/unique_id.h"

namespace jax_cxl::nccl {

// What a rank knows about a communicator that it makes.
struct Opening {
  PoolToken token;
  int rank = 0;
  int size = 0;
  int ordinal = 0;  // of the CUDA device
  Config config;
  void** communicator = nullptr;  // where the program wants it
};

// Returns the CUDA device of the calling thread. Fails if there is no GPU.
Result<int> CurrentOrdinal();

// Makes a communicator whose ranks meet in the pool. If all of them are on one
// host, makes a communicator of the real library instead. Except with
// Hosts::kAll, it blocks until the communicator is open, even if the program
// asks for one that never blocks: which library makes it is known only when the
// ranks have met.
Status Open(const Opening& opening);

// Prints once where collectives go, and why.
void Announce(int rank);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_LIBRARY_OPENING_H_
