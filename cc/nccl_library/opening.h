#ifndef JAX_CXL_NCCL_LIBRARY_OPENING_H_
#define JAX_CXL_NCCL_LIBRARY_OPENING_H_

#include "cc/base/status.h"
#include "cc/nccl/communicator.h"
#include "cc/nccl/interface/abi.h"
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

Result<int> CurrentOrdinal();

// Returns the config with which the real library makes a communicator. The
// communicator blocks, even if the program asks for a nonblocking one. The
// program does not know which library makes a communicator, so one group may
// have communicators of both. But the real library cannot have blocking and
// nonblocking communicators in one group: in version 2.28 the blocking ones
// then stay in progress forever. If the real library makes all communicators,
// they are as the program asks.
Config ConfigForReal(const Config& config);

// Makes a communicator whose ranks meet in the pool. If all of them are on one
// host, or if one of them cannot use the pool, makes a communicator of the real
// library instead. Except with Hosts::kAll, it blocks until the communicator is
// open, even if the program asks for one that never blocks.
Status Open(const Opening& opening);

// Prints once where collectives go, and why.
void Announce(int rank);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_LIBRARY_OPENING_H_
