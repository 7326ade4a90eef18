#include "cc/plan/planners/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace jax_cxl::plan {
namespace {

constexpr uint64_t kNoRound = std::numeric_limits<uint64_t>::max();

bool Continues(const Step& last, StepKind kind, uint64_t round, uint64_t from,
               uint64_t to) {
  return last.kind == kind && last.round == round &&
         last.from + last.bytes == from && last.to + last.bytes == to;
}

// Returns the number of chunks with which `readers` ranks read the same bytes
// in the least time, if each chunk lies on another device. With k chunks, each
// device delivers 1/k of the bytes, but the call has k times the overhead of a
// chunk.
uint64_t Spread(uint64_t bytes, uint64_t readers) {
  // Bytes that a device delivers during that overhead: a fence and the latency
  // of a get.
  constexpr double kBytesBetweenChunks = 44 << 10;
  return std::lround(
      std::sqrt(static_cast<double>(bytes) * readers / kBytesBetweenChunks));
}

// Returns the round whose slots a step reads, or kNoRound.
uint64_t ReadRound(const Step& step) {
  switch (step.kind) {
    case StepKind::kGet:
    case StepKind::kReduce:
    case StepKind::kReduceToSlot:
      return step.round;
    default:
      return kNoRound;
  }
}

// Returns the round whose slot a step writes, or kNoRound.
uint64_t WrittenRound(const Step& step) {
  switch (step.kind) {
    case StepKind::kPut:
    case StepKind::kPutOutput:
      return step.round;
    case StepKind::kReduceToSlot:
      return step.to_round;
    default:
      return kNoRound;
  }
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
  // If there are fewer ranks than devices, no two ranks use one device.
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
    // A chunk fills as many bytes of a slot as `parts` of its segments have.
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

Step& Planner::Add(StepKind kind, uint64_t round, uint64_t bytes) {
  Step& step = plan_.steps.emplace_back();
  step.kind = kind;
  step.round = round;
  step.bytes = bytes;
  return step;
}

void Planner::Copy(uint64_t from, uint64_t to, uint64_t bytes) {
  if (bytes == 0) return;
  Step& step = Add(StepKind::kCopy, 0, bytes);
  step.from = from;
  step.to = to;
}

void Planner::Zero(uint64_t to, uint64_t bytes) {
  if (bytes == 0) return;
  Add(StepKind::kZero, 0, bytes).to = to;
}

void Planner::Put(uint64_t round, uint64_t from, uint64_t to, uint64_t bytes) {
  if (bytes == 0) return;
  if (!plan_.steps.empty() &&
      Continues(plan_.steps.back(), StepKind::kPut, round, from, to)) {
    plan_.steps.back().bytes += bytes;
    return;
  }
  Step& step = Add(StepKind::kPut, round, bytes);
  step.from = from;
  step.to = to;
}

void Planner::PutOutput(uint64_t round, uint64_t from, uint64_t to,
                        uint64_t bytes) {
  if (bytes == 0) return;
  Step& step = Add(StepKind::kPutOutput, round, bytes);
  step.from = from;
  step.to = to;
}

void Planner::Publish(uint64_t round) {
  if (!plan_.steps.empty() && WrittenRound(plan_.steps.back()) == round) {
    PublishNothing(round);
  }
}

void Planner::PublishNothing(uint64_t round) {
  Add(StepKind::kPublish, round, 0);
}

void Planner::Get(int peer, uint64_t round, uint64_t from, uint64_t to,
                  uint64_t bytes) {
  if (bytes == 0) return;
  Step& step = Add(StepKind::kGet, round, bytes);
  step.peer = peer;
  step.from = from;
  step.to = to;
}

void Planner::Await(int peer, uint64_t round) {
  Add(StepKind::kGet, round, 0).peer = peer;
}

void Planner::Reduce(int first, int last, uint64_t round, uint64_t from,
                     uint64_t input_from, uint64_t to, uint64_t bytes) {
  if (bytes == 0) return;
  Step& step = Add(StepKind::kReduce, round, bytes);
  step.first = first;
  step.last = last;
  step.from = from;
  step.input_from = input_from;
  step.to = to;
}

void Planner::ReduceToSlot(int first, int last, uint64_t round, uint64_t from,
                           uint64_t input_from, uint64_t to_round, uint64_t to,
                           uint64_t bytes) {
  if (bytes == 0) return;
  Reduce(first, last, round, from, input_from, to, bytes);
  plan_.steps.back().kind = StepKind::kReduceToSlot;
  plan_.steps.back().to_round = to_round;
}

Plan Planner::Finish(uint64_t rounds) && {
  // Goes through the steps in reverse, because a release depends on later
  // reads.
  const std::vector<Step> steps = std::move(plan_.steps);
  std::vector<Step> reversed;
  reversed.reserve(steps.size() + rounds);
  uint64_t read_next = rounds;  // no step from here on reads an earlier round
  auto release_before = [&reversed](uint64_t round) {
    if (round == 0) return;
    Step& step = reversed.emplace_back();
    step.kind = StepKind::kRelease;
    step.round = round - 1;
  };
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const uint64_t round = ReadRound(*step);
    if (round < read_next) {
      release_before(read_next);
      read_next = round;
    }
    reversed.push_back(*step);
  }
  release_before(read_next);
  std::reverse(reversed.begin(), reversed.end());
  plan_.steps = std::move(reversed);
  plan_.rounds = rounds;
  return std::move(plan_);
}

}  // namespace jax_cxl::plan
