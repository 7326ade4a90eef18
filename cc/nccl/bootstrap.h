#ifndef JAX_CXL_NCCL_BOOTSTRAP_H_
#define JAX_CXL_NCCL_BOOTSTRAP_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/interface/unique_id.h"
#include "cc/pool/open/unique_fd.h"

// Where the ranks of a new communicator exchange messages before they share
// memory, and if they cannot share any: a TCP server in the process that made
// the unique id, which carries its address. NCCL has one too.
namespace jax_cxl::nccl {

// Returns the address of this process's server, which starts at the first call.
// The port is 0 if this machine has no network that works. Like NCCL, obeys
// NCCL_SOCKET_IFNAME, which is `interfaces`.
BootstrapAddress OwnBootstrap(const std::string& interfaces);

// Returns true if NCCL_SOCKET_IFNAME allows an interface: prefixes of its name
// (eth,ib), whole names (=eth0), or all other interfaces (^docker).
bool AllowsInterface(const std::string& interfaces, const std::string& name);

// The error of ranks that meet while the program aborts their communicator.
Status AbortedWhileMeeting();

// One rank's connection with the others.
class Bootstrap {
 public:
  // Connects with the server that `token` names. Waits end once `cancel`, which
  // has to outlive the connection, is true.
  static Result<std::unique_ptr<Bootstrap>> Join(
      const PoolToken& token, int rank, int size, double timeout_s,
      const std::atomic<bool>& cancel);

  // Returns the blocks of all ranks, in their order. Every rank gives a block
  // of the same size. Waits until all ranks have called this.
  Result<std::vector<std::byte>> AllGather(std::span<const std::byte> block);

  // Waits until every rank has told how far it came. If a rank has failed,
  // fails on all ranks with the message of the first of them.
  Status Agree(const Status& mine);
  // Returns true if Agree has failed on all ranks alike.
  bool agreed_to_fail() const { return agreed_to_fail_; }

 private:
  Bootstrap(pool::UniqueFd fd, int size, double timeout_s,
            const std::atomic<bool>& cancel)
      : fd_(std::move(fd)),
        size_(size),
        timeout_s_(timeout_s),
        cancel_(cancel) {}

  pool::UniqueFd fd_;
  int size_;
  double timeout_s_;
  const std::atomic<bool>& cancel_;
  bool agreed_to_fail_ = false;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_BOOTSTRAP_H_
