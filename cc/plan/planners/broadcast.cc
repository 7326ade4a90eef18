#include <algorithm>
#include <numeric>

#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {
namespace {

// Readers drift apart in time. Once in this many windows, they start together
// again (see PlanBroadcast).
constexpr uint64_t kWindowsTogether = 8;

// Waits until the root has published `round`, or its last round if `round` is
// later.
void Await(Planner& planner, const Chunks& chunks, uint64_t round) {
  planner.Await(planner.request().root, std::min(round, chunks.count - 1));
}

// Gets bytes [begin, end) of the root's block.
void Get(Planner& planner, const Chunks& chunks, uint64_t begin, uint64_t end) {
  while (begin < end) {
    const uint64_t t = begin / chunks.bytes, at = begin - chunks.Begin(t);
    const uint64_t bytes = std::min(end - begin, chunks.Size(t) - at);
    planner.Get(planner.request().root, t, at, begin, bytes);
    begin += bytes;
  }
}

uint64_t PutAll(Planner& planner, const Chunks& chunks) {
  for (uint64_t t = 0; t < chunks.count; ++t) {
    planner.PublishChunk(chunks, t);
    planner.Copy(chunks.Begin(t), chunks.Begin(t), chunks.Size(t));
  }
  return chunks.count;
}

// How many rounds apart readers start, and how many different starts there are.
struct Stagger {
  uint64_t step = 1;
  uint64_t starts = 1;
};

// Returns how far apart readers must start to load all devices equally. If the
// number of parts of a round is not a multiple of the number of devices, some
// devices hold one more part than others. The devices with the extra parts
// change from round to round, so readers in different rounds can balance the
// load. If the ring has too few slots for that, returns a single start.
Stagger StaggerOf(const Geometry& geometry) {
  const uint64_t devices = geometry.num_devices;
  const uint64_t step =
      std::gcd<uint64_t>(geometry.device_parts % devices, devices);
  const uint64_t starts = devices / step;
  const uint64_t half =
      geometry.num_slots / 2;  // the root fills the other half
  return step * (starts - 1) <= half ? Stagger{step, starts} : Stagger{};
}

// The plan if every round lies on all devices. Readers follow the root closely,
// because they use all devices in any round. If there are more readers than
// devices, the speed of readers is limited by the devices, and not by the
// readers' links. In that case, readers of a long message start in different
// rounds, to load the devices equally.
uint64_t Striped(Planner& planner) {
  const Geometry& geometry = planner.geometry();
  const bool many = planner.ranks() - 1 > geometry.num_devices;
  const Chunks chunks = planner.Cut(
      planner.block(), {.pipeline = (many ? 12 : 6) * kPipelineChunks});
  if (planner.is_root()) return PutAll(planner, chunks);
  const Stagger stagger = StaggerOf(geometry);
  const uint64_t start = planner.reader() % stagger.starts * stagger.step;
  const uint64_t last = stagger.step * (stagger.starts - 1);
  // Readers start apart only if the devices limit the speed and the wait is
  // short compared with the call.
  if (many && start > 0 && chunks.count >= kPipelineChunks * last)
    Await(planner, chunks, start);
  Get(planner, chunks, 0, chunks.total);
  return chunks.count;
}

}  // namespace

// Round t carries chunk t of the root's block. The root is ahead of its readers
// by at most as many rounds as a ring has slots.
//
// Readers that follow the root closely all read one slot, and hence one device,
// at a time. If slots lie on several devices, readers should read different
// rounds of a window at the same time. A window is at most half a ring, so that
// the root can fill the other half meanwhile. If there are few readers, each
// starts one round after the previous reader, and they stay apart. Many readers
// would catch up with each other. Therefore they wait until a whole window is
// published, and start at places that are spread evenly over it.
//
// Many readers still drift apart in time, window by window. So in every eighth
// window (kWindowsTogether) they also wait for the first round of the next
// window before they start. The root puts that round only when all readers have
// read the previous window.
uint64_t PlanBroadcast(Planner& planner) {
  if (planner.striped()) return Striped(planner);
  const Geometry& geometry = planner.geometry();
  const uint64_t reader = planner.reader(), readers = planner.ranks() - 1;
  const uint64_t window =
      std::min<uint64_t>(geometry.num_slots / 2, geometry.num_devices);
  const bool many = readers > window && window > 1;
  // With many readers, the root fills one window while they read another. So
  // the pipeline consists of windows, and not of chunks. It should have eight
  // windows.
  const Chunks chunks = planner.Cut(
      planner.block(), {.pipeline = many ? 8 * window : kPipelineChunks,
                        .readers = readers,
                        .devices = window});
  if (planner.is_root()) return PutAll(planner, chunks);
  if (!many && chunks.count > window) {
    const uint64_t start = std::min(reader, window - 1);
    if (start > 0) Await(planner, chunks, start);
    Get(planner, chunks, 0, chunks.total);
    return chunks.count;
  }
  const uint64_t lines =
      std::lcm<uint64_t>(planner.request().element_bytes, kSlotAlignment);
  for (uint64_t first = 0; first < chunks.count; first += window) {
    const uint64_t begin = chunks.Begin(first);
    const uint64_t end = std::min(chunks.Begin(first + window), chunks.total);
    const uint64_t middle =
        !many || chunks.count == 1
            ? chunks.Begin(chunks.count * reader / readers)
            : begin + (end - begin) / lines * reader / readers * lines;
    const bool together =
        first / window % kWindowsTogether == kWindowsTogether - 1;
    if (many && chunks.count > 1)
      Await(planner, chunks, first + window - (together ? 0 : 1));
    Get(planner, chunks, middle, end);
    Get(planner, chunks, begin, middle);
  }
  return chunks.count;
}

}  // namespace jax_cxl::plan
