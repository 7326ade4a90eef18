#include "cc/nccl/levels/steps.h"

#include <algorithm>
#include <utility>

#include "cc/nccl/calls/reductions.h"
#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {
namespace {

// Parts begin at multiples of this if the buffers do.
constexpr uint64_t kPartAlignment = 256;

constexpr int kBytes = 1;         // ncclUint8
constexpr int kFirstFloat8 = 10;  // older versions of NCCL do not have them

// Makes the steps of one operation.
class Maker {
 public:
  Maker(const Operation& operation, const plan::Request& request,
        const Levels& levels)
      : operation_(operation),
        levels_(levels),
        places_(levels.places),
        element_(request.element_bytes),
        aligned_(kPartAlignment / element_) {}

  Status Make() {
    switch (operation_.verb) {
      case Verb::kAllReduce:
        return AllReduce();
      case Verb::kBroadcast:
        return Broadcast();
      case Verb::kReduceScatter:
        return ReduceScatter();
      default:
        return AllGather();
    }
  }
  std::vector<LevelStep> Steps() { return std::move(steps_); }

 private:
  // These return the address of an element.
  const std::byte* Input(uint64_t element) const {
    if (operation_.input == nullptr) return nullptr;  // not the root
    return static_cast<const std::byte*>(operation_.input) + element * element_;
  }
  std::byte* Output(uint64_t element) const {
    return static_cast<std::byte*>(operation_.output) + element * element_;
  }
  std::byte* Scratch(uint64_t element) const {
    return levels_.scratch + element * element_;
  }

  Operation Copy(Verb verb, const void* input, void* output,
                 uint64_t count) const {
    Operation copy = operation_;
    copy.verb = verb;
    copy.input = input;
    copy.output = output;
    copy.count = count;
    return copy;
  }

  // A mean over the ranks of a host is not the mean over all ranks. So the
  // steps inside add, and the step between the hosts divides.
  Operation Reduce(Verb verb, const void* input, void* output, uint64_t count,
                   int root = 0) const {
    Operation inside = Copy(verb, input, output, count);
    if (inside.reduction == kAvg) inside.reduction = kSum;
    inside.root = root;
    return inside;
  }
  // Moves bytes, because the real NCCL may lack the type of the elements.
  Operation Move(Verb verb, const void* input, void* output, uint64_t count,
                 int root = 0) const {
    Operation inside = Copy(verb, input, output, count * element_);
    inside.type = kBytes;
    inside.root = root;
    return inside;
  }

  void Inside(std::vector<Operation> operations) {
    LevelStep step;
    step.kind = LevelStep::Kind::kInside;
    step.operations = std::move(operations);
    steps_.push_back(std::move(step));
  }
  Status Between(Operation operation) {
    operation.root = operation_.root / places_.per_host;
    LevelStep step;
    step.kind = LevelStep::Kind::kBetween;
    CXL_ASSIGN_OR_RETURN(
        step.collective,
        MakeCollective(operation, places_.host, places_.hosts, {}));
    step.collective.call.name += " in levels";
    if (step.collective.divisor > 0)
      step.collective.divisor = static_cast<uint32_t>(places_.size());
    steps_.push_back(std::move(step));
    return OkStatus();
  }
  // Adds a step of all ranks for the elements from `first` on.
  Status All(uint64_t first) {
    if (first == operation_.count) return OkStatus();
    LevelStep step;
    CXL_ASSIGN_OR_RETURN(
        step.collective,
        MakeCollective(Copy(operation_.verb, Input(first), Output(first),
                            operation_.count - first),
                       places_.host * places_.per_host + places_.place,
                       places_.size(), {}));
    steps_.push_back(std::move(step));
    return OkStatus();
  }

  // Returns the number of elements in the part of one place.
  uint64_t Part() const {
    return operation_.count / (places_.per_host * aligned_) * aligned_;
  }

  Status AllReduce() {
    const uint64_t part = Part();
    std::byte* const mine = Output(places_.place * part);
    Inside({Reduce(Verb::kReduceScatter, Input(0), mine, part)});
    CXL_RETURN_IF_ERROR(Between(Copy(Verb::kAllReduce, mine, mine, part)));
    Inside({Move(Verb::kAllGather, mine, Output(0), part)});
    return All(places_.per_host * part);
  }

  Status Broadcast() {
    const uint64_t part = Part();
    const uint64_t parts = places_.per_host * part;
    std::byte* const mine = Output(places_.place * part);
    const int root = operation_.root % places_.per_host;
    const bool at_root = operation_.root / places_.per_host == places_.host;
    if (at_root)
      Inside(
          {Move(Verb::kBroadcast, places_.place == root ? Input(0) : Output(0),
                Output(0), parts, root)});
    CXL_RETURN_IF_ERROR(Between(Copy(Verb::kBroadcast, mine, mine, part)));
    if (!at_root) Inside({Move(Verb::kAllGather, mine, Output(0), part)});
    return All(parts);
  }

  // Calls `chunk` with the first element and the number of the elements of each
  // chunk of a block. The scratch has a chunk for each host.
  template <typename Chunk>
  Status ForEachChunk(const Chunk& chunk) {
    uint64_t most = levels_.scratch_bytes / element_ / places_.hosts;
    if (most < operation_.count) most = most / aligned_ * aligned_;
    for (uint64_t first = 0; first < operation_.count; first += most)
      CXL_RETURN_IF_ERROR(
          chunk(first, std::min(most, operation_.count - first)));
    return OkStatus();
  }

  // The first element of the block of a rank.
  uint64_t Block(int host, int place) const {
    return (host * places_.per_host + place) * operation_.count;
  }

  // The blocks of a host lie side by side, so one operation serves them. If
  // the blocks are cut into chunks, each chunk needs an operation of its own.
  Status ReduceScatter() {
    return ForEachChunk([&](uint64_t first, uint64_t count) -> Status {
      std::vector<Operation> inside;
      for (int host = 0; host < places_.hosts; ++host) {
        std::byte* const sum = Scratch(host * count);
        if (count == operation_.count) {
          inside.push_back(
              Reduce(Verb::kReduceScatter, Input(Block(host, 0)), sum, count));
          continue;
        }
        for (int place = 0; place < places_.per_host; ++place)
          inside.push_back(Reduce(Verb::kReduce,
                                  Input(Block(host, place) + first), sum, count,
                                  place));
      }
      Inside(std::move(inside));
      return Between(
          Copy(Verb::kReduceScatter, Scratch(0), Output(first), count));
    });
  }

  Status AllGather() {
    return ForEachChunk([&](uint64_t first, uint64_t count) -> Status {
      CXL_RETURN_IF_ERROR(
          Between(Copy(Verb::kAllGather, Input(first), Scratch(0), count)));
      std::vector<Operation> inside;
      for (int host = 0; host < places_.hosts; ++host) {
        std::byte* const block = Scratch(host * count);
        if (count == operation_.count) {
          inside.push_back(
              Move(Verb::kAllGather, block, Output(Block(host, 0)), count));
          continue;
        }
        for (int place = 0; place < places_.per_host; ++place)
          inside.push_back(Move(Verb::kBroadcast, block,
                                Output(Block(host, place) + first), count,
                                place));
      }
      Inside(std::move(inside));
      return OkStatus();
    });
  }

  const Operation& operation_;
  const Levels& levels_;
  const Places& places_;
  const uint64_t element_;
  const uint64_t aligned_;  // elements
  std::vector<LevelStep> steps_;
};

}  // namespace

bool RunsInLevels(const Operation& operation, const plan::Request& request,
                  const Levels& levels) {
  switch (operation.verb) {
    case Verb::kAllReduce:
    case Verb::kReduceScatter:
      // The real NCCL does not know the premultiplied sums of this library.
      if (operation.reduction >= kNumOps || operation.type >= kFirstFloat8)
        return false;
      break;
    case Verb::kBroadcast:
    case Verb::kAllGather:
      break;
    default:
      return false;
  }
  const uint64_t bytes =
      std::max(plan::InputBytes(request), plan::OutputBytes(request));
  // The buffer must be large enough to give each place a part.
  return bytes >=
         std::max(levels.least_bytes, levels.places.per_host * kPartAlignment);
}

Result<std::vector<LevelStep>> LevelSteps(const Operation& operation,
                                          const plan::Request& request,
                                          const Levels& levels) {
  Maker maker(operation, request, levels);
  CXL_RETURN_IF_ERROR(maker.Make());
  return maker.Steps();
}

}  // namespace jax_cxl::nccl
