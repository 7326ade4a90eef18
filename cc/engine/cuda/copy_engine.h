#ifndef JAX_CXL_ENGINE_CUDA_COPY_ENGINE_H_
#define JAX_CXL_ENGINE_CUDA_COPY_ENGINE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/gpu_plan/gpu_plan.h"

// Executes a GPU plan with the device's copy engines. They fill the link in
// both directions where kernels cannot, and leave the multiprocessors free.
// Operands of a reduction are copied to the device and reduced there, by the
// only kernels of a call.
//
// Between two rounds, a stream stores the word of one doorbell and waits for
// the word of another. This takes several microseconds. Therefore rounds can
// use two *pipelines* in turn, each with its own streams and doorbells: while
// one waits, the other moves data.
//
// But two pipelines have a cost. If a copy engine already has the next copy
// when a copy ends, the word of the first copy is stored only after the next
// copy. So peers get each chunk one chunk later. Two pipelines therefore help
// only two kinds of calls: calls that also wait for reductions, and calls with
// many chunks, for which a delay of one chunk does not matter. In a call, a
// slot always belongs to the same pipeline, so the rounds of each pipeline are
// in order.
//
// Calls with the same layout form a *series*. The next call of a series does
// not wait for the end of the previous call. Instead, each slot waits until the
// peers have read the slot's last round. So the first chunks of the next call
// move while the last chunks of the previous call are still read, and the link
// is never idle between two calls.
//
// A stream may wait for something that another stream sends. So these streams
// must not share a queue of the device. By default a process has 8 queues for
// kernels and 8 for copies on a device. jax_cxl/__init__.py asks for 32.
namespace jax_cxl::cuda {

// A call's GPU plan, and how it is executed.
struct CopyEnginePlan {
  const GpuPlan& steps;
  int pipelines;              // 1 or 2
  const MemberView* members;  // in memory that the host can read
  // Device memory for operands of reductions: kBuffers buffers of
  // `staging_bytes` each.
  std::byte* staging;
  uint64_t staging_bytes;  // num_members - 1 slots
  // The number of rounds of all calls before the series.
  uint64_t series_begin;
};

// Events before and after a call, for measuring its duration.
struct CopyTimes {
  Event begin;
  Event end;
};

// Not thread-safe, but any thread may call Stop at any time.
class CopyEngine {
 public:
  static constexpr int kPipelines = 2;
  static constexpr int kBuffers =
      2 * kPipelines;  // one is reduced while another is filled

  Status Open();

  // Enqueues a call after the earlier work of `stream`. The call waits for
  // words of its members. If a member never comes, only Stop ends the call.
  cudaError_t Enqueue(const DeviceCall& call, const CopyEnginePlan& gpu_plan,
                      const CopyTimes& times, cudaStream_t stream);

  // The stream on which calls end, in their order.
  cudaStream_t end() const { return end_.get(); }

  // Stops the device, as Launch does, and thereby ends calls that wait.
  void Stop();

 private:
  class Walk;

  // A pipeline's streams, and the events between them.
  struct Pipeline {
    Stream publishing;
    Stream retrieving;
    Stream reducing;
    // One event of each kind for each of the two buffers of the pipeline.
    // `staged`: the operands are in the buffer. `emptied`: the buffer may be
    // filled again.
    std::array<Event, 2> staged;
    std::array<Event, 2> emptied;
    int buffer = 0;  // index of the next buffer
    // After event `reduced[p]`, the results that this pipeline has written to
    // slots of pipeline p are complete.
    std::array<Event, kPipelines> reduced;
  };

  std::array<Pipeline, kPipelines> pipelines_;
  Event event_;
  Stream end_;
  Stream stopping_;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_COPY_ENGINE_H_
