#ifndef JAX_CXL_SIMULATOR_TASK_GRAPH_H_
#define JAX_CXL_SIMULATOR_TASK_GRAPH_H_

#include <cstdint>
#include <vector>

#include "cc/simulator/fair_share.h"

namespace jax_cxl::sim {

// The streams of a rank, which run at the same time. kOut and kIn are the DMA
// engines (or copy kernels) of the two directions of its link. kLocal copies
// within its own memory. kPublish and kRelease ring its two doorbells, while
// copies continue. Each stream runs its tasks in order.
enum class Stream : uint8_t { kOut, kIn, kLocal, kPublish, kRelease };
inline constexpr int kNumStreams = 5;

// The two doorbells of a rank. Their values only grow, as in cc/plan/plan.h.
enum class Doorbell : uint8_t { kNone, kPublished, kReleased };

struct Task {
  Stream stream = Stream::kLocal;
  // Bytes to move once the task is ready and its stream is free. May be 0.
  double bytes = 0;
  std::vector<Use> uses;
  double setup = 0;  // the stream's time before the bytes move
  double latency =
      0;  // between ready and the bytes; behind other tasks for free

  // The task is ready when ranks [first, last) except its own have rung `await`
  // up to `value`, and task `after` of the same rank is done (-1: none).
  Doorbell await = Doorbell::kNone;
  int first = 0;
  int last = 0;
  uint64_t value = 0;
  uint64_t released = 0;  // also: the others have rung kReleased up to this
  int after = -1;

  // The doorbell that rings when the task is done. All ranks hear it
  // `doorbell_seconds` later.
  Doorbell rings = Doorbell::kNone;
  uint64_t rung = 0;
};

// The tasks of all ranks. In the order of a rank's tasks, the values `rung` of
// each doorbell must grow.
struct TaskGraph {
  double start = 0;             // no task begins earlier
  double doorbell_seconds = 0;  // from ringing to hearing
  std::vector<std::vector<Task>> ranks;
};

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_SIMULATOR_TASK_GRAPH_H_
