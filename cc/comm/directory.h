#ifndef JAX_CXL_COMM_DIRECTORY_H_
#define JAX_CXL_COMM_DIRECTORY_H_

#include <cstdint>
#include <optional>

#include "cc/base/status.h"
#include "cc/pool/doorbell.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// A rank's list of its channels, in its page of the pool. Thread-safe.

// Appends `place` to the directory of `rank`, one of this process's; returns
// the number of the entry.
// Errors: kResourceExhausted.
Result<int> EnterChannel(pool::Pool* pool, const pool::Doorbells& doorbells,
                         int rank, const pool::ChannelPlace& place);

// The entry of `group` in the directory of `rank`; none if it has not opened
// that channel yet. Nothing in the entry has been checked.
std::optional<pool::ChannelPlace> FindChannel(const pool::Pool& pool,
                                              const pool::Doorbells& doorbells,
                                              int rank, uint64_t group);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_DIRECTORY_H_
