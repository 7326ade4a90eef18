#ifndef JAX_CXL_NCCL_COMMUNICATOR_POOL_H_
#define JAX_CXL_NCCL_COMMUNICATOR_POOL_H_

#include <memory>

#include "cc/base/status.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl/interface/unique_id.h"
#include "cc/pool/pool.h"

// Where the ranks of a communicator meet: a pool of its own. All ranks know the
// communicator's token, and nothing else.
//
// In /dev/shm and in a shared file system, the pool is a file whose name
// contains the token. A shared device is divided into equal parts. Rank 0 takes
// a free one, and the other ranks look for the token in all of them.
namespace jax_cxl::nccl {

// Creates the pool; called by rank 0. Fails with kResourceExhausted if all
// parts of the device are in use.
Result<std::unique_ptr<pool::Pool>> CreatePool(const PoolToken& token, int size,
                                               const Settings& settings);

// Attaches the pool. Fails with kNotFound if it is not there yet.
Result<std::unique_ptr<pool::Pool>> AttachPool(const PoolToken& token, int size,
                                               const Settings& settings);

// Returns a text that tells the user where ranks can meet, for errors of ranks
// that have waited in vain.
std::string MeetingAdvice(const Settings& settings);

// Returns how many bytes a rank may use: Settings::rank_bytes, or less in a
// small part of a device. Fails with kResourceExhausted if they are too few.
Result<uint64_t> RankBytes(const pool::Pool& pool, const Settings& settings);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_COMMUNICATOR_POOL_H_
