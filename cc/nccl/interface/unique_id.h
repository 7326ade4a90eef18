#ifndef JAX_CXL_NCCL_INTERFACE_UNIQUE_ID_H_
#define JAX_CXL_NCCL_INTERFACE_UNIQUE_ID_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {

// Where the process that made an id serves its ranks (cc/nccl/bootstrap.h).
struct BootstrapAddress {
  uint32_t ip = 0;    // in network byte order
  uint32_t port = 0;  // likewise; 0: there is no server

  bool operator==(const BootstrapAddress&) const = default;
};

// The name by which ranks meet in a pool: a random number. It lies at the end
// of an NCCL unique id.
struct PoolToken {
  uint64_t high = 0;
  uint64_t low = 0;  // not 0
  BootstrapAddress bootstrap = {};

  bool operator==(const PoolToken&) const = default;
};

Result<PoolToken> RandomPoolToken();

// Returns the token of a new communicator. It is made by `survivors`, some
// ranks of the communicator with the token `parent`. All of them compute the
// same token without communication. `count` is the number of communicators that
// the same ranks have already made from that one.
PoolToken DeriveToken(const PoolToken& parent, std::span<const int> survivors,
                      uint64_t count);

// What a rank asks for when a communicator is split. The part uses `token` if
// this rank becomes its first rank.
struct SplitChoice {
  int color = 0;
  int key = 0;
  PoolToken token;
};

// The part of a rank.
struct SplitPart {
  PoolToken token;
  int rank = 0;
  int size = 0;
};

// Returns the part of `rank`: the ranks of its color, sorted by key. Ranks with
// equal keys are sorted by rank.
SplitPart PartOf(const std::vector<SplitChoice>& choices, int rank);

std::string PoolName(const PoolToken& token);

void PutToken(const PoolToken& token, NcclUniqueId* id);
// Returns nothing if another library has made the id.
std::optional<PoolToken> TokenOf(const NcclUniqueId& id);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_UNIQUE_ID_H_
