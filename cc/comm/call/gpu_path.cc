#include "cc/comm/call/gpu_path.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

namespace jax_cxl::comm {
namespace {

// If the copy engines executed the previous calls, a short call that runs aside
// uses them too, and so continues the series of these calls. A kernel would
// have to wait until the computation leaves a multiprocessor free, and later
// calls would wait for the kernel. After this many short calls in a row the
// series is over.
constexpr int kMostShortCalls = 64;

// The largest number of blocks of a kernel that moves rows and runs aside. A
// power of two.
constexpr uint32_t kRowBlocksAside = 16;

// Sizes of calls, in units of DeviceOptions::copy_engine_bytes. The faster
// kernels are in an operation, the longer a call must be before it uses the
// copy engines.
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kQuarter = 0.25, kOne = 1, kFour = 4;

// From which size on the copy engines execute an operation, and how.
struct CopyRule {
  // Between two GPUs, the copy engines are faster than kernels from this size
  // on.
  double from = kNever;
  int pipelines = 1;
};

// Returns the rule of an operation, or nothing if it has not been measured.
// Kernels then execute the operation. `relayed` is GpuCallFacts::relayed.
std::optional<CopyRule> RuleOf(plan::Op op, bool relayed) {
  switch (op) {
    case plan::Op::kAllGather:
    case plan::Op::kAllToAll:
      return CopyRule{.from = kOne};
    case plan::Op::kAllReduce:
      return CopyRule{.from = kOne, .pipelines = 2};
    case plan::Op::kReduceScatter:
      // Kernels are fast here, because they need not stage operands as the copy
      // engines do.
      return CopyRule{.from = kFour, .pipelines = 2};
    case plan::Op::kBroadcast:
    case plan::Op::kGather:
    case plan::Op::kScatter:
      // The relay processes the cache lines of a round between the round's two
      // copies. To hide this work, several rounds must be under way. The rounds
      // of a kernel are too short for that. So the copy engines are faster
      // from a smaller size on than without a relay.
      if (relayed) return CopyRule{.from = kQuarter, .pipelines = 2};
      // These calls move data in one direction of the link only. Kernels fill
      // one direction nearly as well as the copy engines do.
      return CopyRule{.from = kFour};
    case plan::Op::kReduce:
      return CopyRule{};
    default:
      return std::nullopt;
  }
}

}  // namespace

// The reasons for the choice:
//
// - With more than two members, kernels read from several peers, and fill both
//   directions of the link as well as the copy engines do.
// - A call that runs aside should leave the multiprocessors to the computation.
//   So it uses the copy engines as soon as that costs little (see also
//   kMostShortCalls).
// - In a pool of several devices, copy engines load one device after another,
//   and kernels load all devices at once.
// - If the job has more GPUs than the call has members, other groups
//   communicate at the same time. Copy engines of several groups slow each
//   other down, and kernels do not (docs/laboratory.md). Then even a long call
//   uses the copy engines only if it runs aside.
GpuPath ChoosePath(const GpuCallFacts& call, const DeviceOptions& options) {
  const auto is_long = [&](double from) {
    return static_cast<double>(call.bytes) >=
           from * static_cast<double>(options.copy_engine_bytes);
  };
  const std::optional<CopyRule> rule = RuleOf(call.op, call.relayed);
  if (!rule || call.bytes == 0) return {};
  if (call.striped && !call.aside) return {};
  if (call.members < call.world_size && !call.aside && is_long(kQuarter))
    return {};

  const bool two = call.members == 2;
  const bool joins =
      call.short_calls >= 0 && call.short_calls < kMostShortCalls;
  if (!(two && is_long(rule->from)) &&
      !(call.aside && (joins || !IsShort(call, options))))
    return {};

  GpuPath path = {rule->pipelines};
  // Calls that run aside form series, in which one pipeline has few pauses. But
  // in an all-reduce, results can be copied only after the operands have been
  // reduced. Two pipelines hide this wait.
  if (call.aside && two && !is_long(kFour) && call.op != plan::Op::kAllReduce)
    path.copy_pipelines = 1;
  if (options.copy_pipelines > 0) path.copy_pipelines = options.copy_pipelines;
  return path;
}

bool IsShort(const GpuCallFacts& call, const DeviceOptions& options) {
  return call.bytes < options.copy_engine_bytes_aside;
}

// The number of blocks: With a relay, the words (doorbells) of all blocks are
// relayed together, so a call may use fewer blocks than the previous call, and
// then needs fewer words. A few blocks move the data of two members fast
// enough, and fewer words are relayed sooner. Kernels that reduce need more
// blocks. But in a pool of several devices the number of blocks must not
// change, because it determines how the blocks divide the slots.
//
// Calls aside that move rows: They use kernels, because copy engines cannot
// move rows. Beside computation, a few blocks of a kernel fill the link nearly
// as well as many blocks, and leave most multiprocessors to the computation.
//
// The threads for each direction: Between two GPUs, each rank of an all_to_all
// sends as much as it receives, and a rank that sends rows also looks them up.
// For these calls, equal numbers of threads for both directions were up to a
// seventh faster. Calls that move rows use equal numbers everywhere, although
// nobody has measured this with more members or in pools without coherence.
cuda::Shape ChooseShape(const GpuCallFacts& call,
                        const DeviceOptions& options) {
  constexpr uint64_t kBlockBytes = uint64_t{16} << 10;
  constexpr uint32_t kMostBlocks = 32, kMostThatMove = 16;
  const bool rows = plan::MovesRows(call.op);
  cuda::Shape shape = options.shape;
  const uint32_t threads = shape.sending_threads + shape.receiving_threads;
  const auto send_with = [&](uint32_t sending) {
    shape.sending_threads = sending / 32 * 32;
    shape.receiving_threads = threads - shape.sending_threads;
  };
  if (rows || (call.op == plan::Op::kAllToAll && !call.striped &&
               !call.relayed && call.members == 2))
    send_with(threads / 2);
  if (call.striped) return shape;
  if (call.aside && rows)
    shape.blocks = std::min(shape.blocks, kRowBlocksAside);
  if (!call.relayed) return shape;
  uint32_t most = kMostBlocks;
  if (call.members == 2 && !plan::Reduces(call.op) && !rows) {
    most = kMostThatMove;
    send_with(threads / 4);
  }
  shape.blocks = static_cast<uint32_t>(std::bit_floor(std::clamp<uint64_t>(
      call.bytes / kBlockBytes, 1, std::min(shape.blocks, most))));
  return shape;
}

// If blocks put one round ahead, they wait after each round that they put, and
// peers get each round soonest. But then the link is idle at times if rounds
// are small, if only some of their rows move, or if several peers read a round
// at the same time. In these cases blocks put two rounds ahead. With rounds of
// middle length, half of the blocks put one round ahead and half put two, so
// that the blocks do not all wait for their fences at the same time.
std::array<uint32_t, 2> RoundsAhead(const plan::Request& request,
                                    uint64_t rounds, uint64_t bytes_published) {
  constexpr uint64_t kMiddleRoundBytes = uint64_t{512} << 10;
  constexpr uint64_t kLongRoundBytes = uint64_t{1} << 20;
  if (request.num_ranks > 2 || plan::MovesRows(request.op) ||
      bytes_published < rounds * kMiddleRoundBytes)
    return {2, 2};
  if (bytes_published < rounds * kLongRoundBytes) return {2, 1};
  return {1, 1};
}

}  // namespace jax_cxl::comm
