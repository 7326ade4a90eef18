#ifndef JAX_CXL_ENGINE_SIM_TASK_GRAPH_H_
#define JAX_CXL_ENGINE_SIM_TASK_GRAPH_H_

#include <cstdint>
#include <vector>

#include "cc/engine/sim/fair_share.h"

namespace jax_cxl::sim {

// What a rank does at the same time: one DMA engine (or copy kernel) in each
// direction of its link, its own memory, and those who ring its two doorbells
// while the copies go on. Each stream runs its operations in order.
enum class Stream : uint8_t { kOut, kIn, kLocal, kPublish, kRelease };
inline constexpr int kNumStreams = 5;

// The two doorbells of a rank: monotone, as in cc/plan/plan.h.
enum class Doorbell : uint8_t { kNone, kPublished, kReleased };

struct Task {
  Stream stream = Stream::kLocal;
  // Moved once the task is ready and its stream free; 0 for none.
  double bytes = 0;
  std::vector<Use> uses;
  double setup = 0;  // the stream's time before the bytes move
  double latency =
      0;  // between ready and the bytes; behind other tasks for free

  // Ready when ranks [first, last) but its own have rung `await` up to `value`
  // and the task `after` of the same rank is done (-1: none).
  Doorbell await = Doorbell::kNone;
  int first = 0;
  int last = 0;
  uint64_t value = 0;
  uint64_t released = 0;  // and all ranks have rung kReleased up to this
  int after = -1;

  // Rung when the task is done; heard by everyone `doorbell_seconds` later.
  Doorbell rings = Doorbell::kNone;
  uint64_t rung = 0;
};

// Counters grow with the order in which a rank's own tasks ring them.
struct TaskGraph {
  double start = 0;             // no task begins earlier
  double doorbell_seconds = 0;  // from ringing to hearing
  std::vector<std::vector<Task>> ranks;
};

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_ENGINE_SIM_TASK_GRAPH_H_
