#ifndef JAX_CXL_NCCL_COMMUNICATOR_POOL_H_
#define JAX_CXL_NCCL_COMMUNICATOR_POOL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl/interface/unique_id.h"
#include "cc/pool/media/medium.h"
#include "cc/pool/pool.h"

// Where the ranks of a communicator meet: a pool of its own. All ranks know the
// communicator's token, and nothing else.
//
// In /dev/shm and in a shared file system, the pool is a file whose name
// contains the token. A shared device is divided into equal parts. Rank 0 takes
// a free one, and the other ranks look for the token in all of them.
namespace jax_cxl::nccl {

// The longest message of the ranks' hosts that goes through the pool in one
// piece. They exchange few, and an idle pool has memory for them.
inline constexpr uint64_t kMessageBytes = 256;

// Where a communicator's pool may lie.
class PoolPlaces {
 public:
  // Fails if no pool could lie there: for example, because the device is
  // missing, or smaller than what a communicator takes.
  static Result<PoolPlaces> Of(const PoolToken& token, int size,
                               const Settings& settings);

  // Creates the pool; called by rank 0. Fails with kAlreadyExists if other
  // communicators or jobs use all places. In /dev/shm, a pool gets at most a
  // quarter of what is free, unless that is too little. It takes this memory in
  // TakeMemory, but is too large only if other programs fill /dev/shm before.
  Result<std::unique_ptr<pool::Pool>> Create() const;

  // Attaches the pool. Fails with kNotFound if it is not there yet.
  Result<std::unique_ptr<pool::Pool>> Attach() const;

 private:
  // Returns the spec of the part of the device that holds the pool. This takes
  // no locks, which would disturb creators that look for a free part.
  Result<std::optional<pool::PoolSpec>> FindPart() const;

  int size_ = 0;
  uint64_t rank_bytes_ = 0;
  bool in_shm_ = false;
  // All ranks have the same places in the same order. Different communicators
  // begin at different places, so that they rarely try the same one.
  std::vector<pool::PoolSpec> specs_;
  std::optional<pool::MapPiece> part_;  // if the places are parts of a device
};

// Returns a text that tells the user where ranks can meet, for errors of ranks
// that have waited in vain.
std::string MeetingAdvice(const Settings& settings);

// Takes the memory of a pool, except for what its ranks need to meet. Called by
// each rank before its first call, and waits for no other rank.
Status TakeMemory(pool::Pool& pool);

// Returns how many bytes a rank may use: Settings::rank_bytes, or less in a
// small part of a device. Fails with kResourceExhausted if they are too few.
Result<uint64_t> RankBytes(const pool::Pool& pool, const Settings& settings);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_COMMUNICATOR_POOL_H_
