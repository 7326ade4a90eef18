#ifndef JAX_CXL_NCCL_DEVICE_H_
#define JAX_CXL_NCCL_DEVICE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/nccl/calls/operation.h"

namespace jax_cxl::nccl {

// The device that executes the calls of one rank of a communicator: a GPU, or a
// model in tests.
//
// One thread at a time calls the functions that are not marked otherwise.
class Device {
 public:
  // Waits for the calls that are enqueued, unless Abort was called before.
  virtual ~Device() = default;

  // Called before this thread enqueues a group of calls: allocates memory that
  // the calls may need. Between them, an allocation could wait for a kernel
  // that waits for the next of them. The job has taken its memory before, and
  // nothing else of the device uses it before the first MakeRoom.
  virtual Status MakeRoom() { return OkStatus(); }

  // Opens the channel from `source` to `destination`, one of which is this
  // rank, without waiting for the other one. Idempotent.
  virtual Status OpenPair(int source, int destination) = 0;
  // Returns true once the other rank has opened the channel too.
  virtual Result<bool> TryConnectPair(int source, int destination) = 0;

  // How many transfers the device can execute side by side. The number is the
  // same on all ranks.
  virtual int most_transfers() const = 0;

  // These functions enqueue work after the earlier work of their streams.
  // SendAndReceive executes the transfers side by side. Between ranks their
  // channels differ, and are connected. A local transfer is a copy.
  virtual Status Enqueue(const Collective& collective, Stream stream) = 0;
  virtual Status SendAndReceive(std::span<const Transfer> transfers) = 0;

  // Waits for the calls that are enqueued.
  virtual Status Drain() = 0;

  // Called when the process exits and may not have destroyed its communicators.
  // Ends the device's threads: CUDA frees the memory that they read.
  virtual void EndThreads() {}

  // Returns why a call cannot complete, or OK. Another thread calls this, and
  // any thread calls Abort, which ends all calls.
  virtual Status Check(comm::Clock::time_point now) = 0;
  virtual void Abort() = 0;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_DEVICE_H_
