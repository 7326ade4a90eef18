#include "cc/plan/planners/planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

namespace jax_cxl::plan {
namespace {

// Returns the number of chunks with which `readers` ranks read the same `bytes`
// bytes in the least time, if each chunk lies on another device. With k chunks,
// each device delivers 1/k of the bytes to each reader, but the call has k
// times the overhead of a chunk.
uint64_t Spread(uint64_t bytes, uint64_t readers) {
  // The overhead of a chunk is a fence and the latency of a get. In this time,
  // a device could deliver this many bytes.
  constexpr double kBytesBetweenChunks = 44 << 10;
  return std::lround(
      std::sqrt(static_cast<double>(bytes) * readers / kBytesBetweenChunks));
}

bool ReadsSlots(const Step& step) {
  return step.kind == StepKind::kGet || step.kind == StepKind::kReduce ||
         step.kind == StepKind::kReduceToSlot;
}

bool WritesSlot(const Step& step, uint64_t round) {
  if (step.kind == StepKind::kReduceToSlot) return step.to_round == round;
  return step.round == round &&
         (step.kind == StepKind::kPut || step.kind == StepKind::kPutOutput);
}

}  // namespace

Planner::Planner(const Request& request, const Geometry& geometry)
    : request_(request),
      geometry_(geometry),
      block_(request.count * request.element_bytes) {}

Turns Planner::TakeTurns(uint64_t rounds) const {
  const uint64_t n = ranks(), devices = geometry_.num_devices;
  const uint64_t window = devices / std::gcd(devices, n);
  const bool fits = 2 * window <= static_cast<uint64_t>(geometry_.num_slots);
  // With fewer ranks than devices, a window gains nothing, because no two ranks
  // use the same device in a round.
  if (striped() || n < devices || !fits || rounds < 2 * window) return {};
  return {window, rank() % window};
}

Chunks Planner::Cut(uint64_t total, const Cutting& cutting) const {
  const auto [parts, ways, least, pipeline, readers, devices] = cutting;
  const uint64_t element = request_.element_bytes;
  const uint64_t align = geometry_.part_alignment;
  const uint64_t room = geometry_.slot_bytes / parts / align * align;
  const uint64_t lines = std::lcm(element, kSlotAlignment);
  const uint64_t grain = room >= lines ? lines : element;
  const uint64_t most = room / grain * grain;
  Chunks chunks;
  chunks.total = total;
  chunks.ways = ways;
  if (total == 0) return chunks;
  uint64_t fewest = CeilDiv(total, ways * most);
  if (geometry_.min_chunk_bytes > 0) {
    // A chunk has `ways` segments, of which `parts` lie side by side in a slot.
    // So all chunks together fill this many bytes of slots.
    const uint64_t filled = total / ways * parts;
    const uint64_t useful = std::max<uint64_t>(pipeline, geometry_.num_slots);
    const uint64_t room_for =
        filled / std::max(geometry_.min_chunk_bytes, least);
    fewest = std::max({fewest, std::min(useful, room_for),
                       std::min({readers, devices, Spread(filled, readers)})});
  }
  chunks.bytes = RoundUp(CeilDiv(total, ways * fewest), grain);
  chunks.stride = RoundUp(chunks.bytes, align);
  chunks.count = CeilDiv(total, ways * chunks.bytes);
  return chunks;
}

void Planner::Put(uint64_t round, uint64_t from, uint64_t to, uint64_t bytes) {
  if (!steps_.empty()) {
    Step& last = steps_.back();
    if (last.kind == StepKind::kPut && last.round == round &&
        last.from + last.bytes == from && last.to + last.bytes == to) {
      last.bytes += bytes;
      return;
    }
  }
  Add(StepKind::kPut, round, from, to, bytes);
}

void Planner::Publish(uint64_t round) {
  if (!steps_.empty() && WritesSlot(steps_.back(), round))
    PublishNothing(round);
}

void Planner::Reduce(int first, int last, uint64_t round, uint64_t from,
                     uint64_t input_from, uint64_t to, uint64_t bytes) {
  if (bytes == 0) return;
  Add(StepKind::kReduce, round, from, to, bytes);
  steps_.back().first = first;
  steps_.back().last = last;
  steps_.back().input_from = input_from;
}

void Planner::ReduceToSlot(uint64_t round, uint64_t from, uint64_t input_from,
                           uint64_t to_round, uint64_t to, uint64_t bytes) {
  if (bytes == 0) return;
  Reduce(0, ranks(), round, from, input_from, to, bytes);
  steps_.back().kind = StepKind::kReduceToSlot;
  steps_.back().to_round = to_round;
}

Plan Planner::Finish(uint64_t rounds) const {
  // Go through the steps in reverse order, because the place of a release
  // depends on the reads that follow.
  std::vector<Step> reversed;
  reversed.reserve(steps_.size() + rounds);
  uint64_t read_next = rounds;  // no step from here on reads an earlier round
  auto release_before = [&reversed](uint64_t round) {
    if (round == 0) return;
    reversed.push_back({.kind = StepKind::kRelease, .round = round - 1});
  };
  for (const Step& step : std::views::reverse(steps_)) {
    if (ReadsSlots(step) && step.round < read_next) {
      release_before(read_next);
      read_next = step.round;
    }
    reversed.push_back(step);
  }
  release_before(read_next);
  return {rounds, {reversed.rbegin(), reversed.rend()}};
}

}  // namespace jax_cxl::plan
