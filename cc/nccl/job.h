#ifndef JAX_CXL_NCCL_JOB_H_
#define JAX_CXL_NCCL_JOB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/completions.h"
#include "cc/comm/endpoint.h"
#include "cc/comm/exchange.h"
#include "cc/comm/health/peers.h"
#include "cc/nccl/bootstrap.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl/interface/unique_id.h"
#include "cc/pool/pool.h"

namespace jax_cxl::nccl {

// One rank of a communicator in its pool: the mapping, the peers, and an
// endpoint through which the hosts of the ranks exchange messages.
class Job {
 public:
  // Meets the other ranks in the pool of the token, which rank 0 creates.
  // `device` is for messages. Fails once `cancel` is true, or if a rank has not
  // come within the timeout. With a bootstrap, fails on all ranks alike if one
  // of them cannot use the pool.
  static Result<std::unique_ptr<Job>> Meet(const PoolToken& token, int rank,
                                           int size, int device,
                                           const Settings& settings,
                                           const std::atomic<bool>& cancel,
                                           Bootstrap* bootstrap = nullptr);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  pool::Pool* pool() { return pool_.get(); }
  comm::Peers* peers() { return peers_.get(); }
  comm::Endpoint* endpoint() { return endpoint_.get(); }

  // How many bytes of its pool a rank may use.
  uint64_t rank_bytes() const { return rank_bytes_; }

  // Returns true if one host (Settings::hosts) has all ranks.
  bool on_one_host() const { return on_one_host_; }

  // Returns the blocks of all ranks, in their order. Every rank gives a block
  // of the same size. Waits until all ranks have called this.
  Result<std::vector<std::byte>> AllGather(std::span<const std::byte> block);

  // Makes the calls of this rank, and its exchanges, fail with `status`.
  void Abort(const Status& status);

 private:
  Job() = default;
  // Creates or attaches the pool.
  Status OpenPool(const PoolToken& token, const Settings& settings,
                  const std::atomic<bool>& cancel, Bootstrap* bootstrap);
  Status AwaitRanks(const Settings& settings, const std::atomic<bool>& cancel);

  int rank_ = 0;
  int size_ = 0;
  uint64_t rank_bytes_ = 0;
  bool on_one_host_ = false;
  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<comm::Peers> peers_;
  comm::Completions completions_;
  std::unique_ptr<comm::Endpoint> endpoint_;
  std::unique_ptr<comm::Exchange> exchange_;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_JOB_H_
