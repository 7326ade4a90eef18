// How DeviceChannel executes a call: with copy engines or kernels, and with
// which GPU plan. This belongs to the enqueuing side, and all ranks must decide
// alike.

#include <algorithm>
#include <bit>
#include <utility>

#include "cc/comm/cuda/device_channel.h"
#include "cc/engine/gpu_plan/flagged_ring.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"
#include "cc/plan/planners/make_plan.h"

namespace jax_cxl::comm {
namespace {

// How much longer calls must be for the copy engines, where kernels have an
// advantage.
constexpr uint64_t kLonger = 4;

// A short call that a program starts joins a series of copies: a kernel would
// wait until the computation leaves a multiprocessor free, and the calls behind
// it would wait for the kernel. After this many short calls in a row there is
// no series to join.
constexpr int kMostShortCalls = 64;

std::string PlanKey(uint64_t channel, const Call& call,
                    const pool::CallDescriptor& descriptor, SlotUse use) {
  std::string key(reinterpret_cast<const char*>(&channel), sizeof(channel));
  key.append(reinterpret_cast<const char*>(&descriptor), sizeof(descriptor));
  // Hashes may collide, so the key contains the permutation itself.
  key.append(reinterpret_cast<const char*>(call.request.sources.data()),
             call.request.sources.size() * sizeof(int32_t));
  key.push_back(static_cast<char>(use));
  return key;
}

}  // namespace

// Chooses copy engines or kernels, the number of pipelines, and the slots of a
// call, from values that are the same on all ranks. Kernels that read from
// several peers fill both directions of the link as well as copy engines do.
// Beside computation, a call leaves the multiprocessors alone as soon as that
// costs little: see kMostShortCalls too. Copy engines load the pool's devices
// one after another, and kernels all of them at once.
//
// If the job has more GPUs, other groups communicate at the same time. Copy
// engines of several groups slow each other down, and kernels do not
// (docs/decisions/0025). So long calls use copy engines only beside
// computation.
DeviceChannel::Path DeviceChannel::PathOf(const Call& call, bool aside) const {
  if (!aside && connection_.stripes().slot_step > 0) return {};
  const auto members = static_cast<int>(connection_.members().size());
  const uint64_t bytes =
      std::max(plan::InputBytes(call.request), plan::OutputBytes(call.request));
  if (members < pool_->world_size() && (!aside || call.alone) &&
      bytes * kLonger >= options_.copy_engine_bytes)
    return {};
  const bool two = members == 2;
  const bool is_long = two && bytes >= options_.copy_engine_bytes;
  const bool is_longest = two && bytes >= kLonger * options_.copy_engine_bytes;
  bool copies = false;
  Path path = {1, SlotUse::kCopies};
  switch (call.request.op) {
    case plan::Op::kAllGather:
    case plan::Op::kAllToAll:
      copies = is_long;
      // The pauses of one pipeline cost more than the delay of one chunk. With
      // a relay, the chunks of two pipelines wait for the same threads.
      if (is_longest) path = {relay_ == nullptr ? 2 : 1, SlotUse::kFewCopies};
      break;
    case plan::Op::kAllReduce:
      copies = is_long;
      path.copy_pipelines = 2;
      break;
    case plan::Op::kReduceScatter:
      copies = is_longest;  // kernels need not stage operands
      path.copy_pipelines = 2;
      break;
    case plan::Op::kBroadcast:
    case plan::Op::kGather:
    case plan::Op::kScatter:
      copies = is_longest;  // kernels fill one direction nearly as well
      if (is_longest) path.slots = SlotUse::kPairs;
      if (relay_ != nullptr) {
        // The relay processes the lines of a round between its two copies. So
        // more rounds must be under way, and a kernel's rounds are too short.
        copies = two && bytes * kLonger >= options_.copy_engine_bytes;
        path = {2, SlotUse::kCopies};
      }
      break;
    case plan::Op::kReduce:
      break;
    default:  // not measured
      return {};
  }
  const bool joins = series_ && series_->short_calls < kMostShortCalls;
  copies |= aside && (joins || bytes >= options_.copy_engine_bytes_aside);
  // Calls that a program starts form series, in which one pipeline has few
  // pauses. Results of an all-reduce wait for its operands, so it needs two.
  if (aside && two && !is_longest && call.request.op != plan::Op::kAllReduce)
    path.copy_pipelines = 1;
  if (options_.copy_pipelines > 0)
    path.copy_pipelines = options_.copy_pipelines;
  return bytes > 0 && copies ? path : Path{};
}

bool DeviceChannel::IsShort(const Call& call) const {
  return std::max(plan::InputBytes(call.request),
                  plan::OutputBytes(call.request)) <
         options_.copy_engine_bytes_aside;
}

// If all blocks' words are relayed together, a call may have fewer blocks than
// the previous call, and a call then needs fewer words. Blocks in different
// slots divide the slots by their number, so their number must stay.
//
// With a relay, few blocks move two members' data fast enough, and their words
// are relayed sooner. Kernels that reduce need more blocks.
//
// Rows have no copy engines. Beside computation, few blocks fill the link
// nearly as well, and leave it most multiprocessors.
//
// Between two GPUs, each rank of an all_to_all sends as much as it receives,
// and a put of rows also looks the rows up. As many threads for both directions
// were up to a seventh faster there. Rows use as many threads everywhere,
// although more members and pools without coherence have not been measured.
cuda::Shape DeviceChannel::ShapeOf(const Call& call, bool aside) const {
  constexpr uint64_t kBlockBytes = uint64_t{16} << 10;
  constexpr uint32_t kMostBlocks = 32, kMostThatMove = 16;
  const plan::Op op = call.request.op;
  cuda::Shape shape = options_.shape;
  const bool striped = connection_.stripes().slot_step > 0;
  if (plan::MovesRows(op) || (op == plan::Op::kAllToAll && !striped &&
                              relay_ == nullptr && members_count() == 2)) {
    const uint32_t threads = shape.sending_threads + shape.receiving_threads;
    shape.sending_threads = threads / 2 / 32 * 32;
    shape.receiving_threads = threads - shape.sending_threads;
  }
  if (striped) return shape;
  if (aside && plan::MovesRows(op))
    shape.blocks = std::min(shape.blocks, options_.row_blocks_aside);
  if (relay_ == nullptr) return shape;
  const uint64_t bytes =
      std::max(plan::InputBytes(call.request), plan::OutputBytes(call.request));
  uint32_t most = kMostBlocks;
  if (members_count() == 2 && !plan::Reduces(op) && !plan::MovesRows(op)) {
    most = kMostThatMove;
    const uint32_t threads = shape.sending_threads + shape.receiving_threads;
    shape.sending_threads = threads / 4 / 32 * 32;
    shape.receiving_threads = threads - shape.sending_threads;
  }
  shape.blocks = static_cast<uint32_t>(std::bit_floor(std::clamp<uint64_t>(
      bytes / kBlockBytes, 1, std::min(shape.blocks, most))));
  return shape;
}

// Returns no plan if the call is too long for flags.
Result<std::optional<cuda::GpuPlan>> DeviceChannel::MakeFlaggedPlan(
    const plan::Request& request) const {
  if (plan::MovesRows(request.op) || options_.flagged_bytes == 0 ||
      !plan::IsFlagged(request, options_.flagged_bytes))
    return std::optional<cuda::GpuPlan>();
  CXL_ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan::MakePlan(request, plan::FlaggedGeometry(request.num_ranks)));
  CXL_ASSIGN_OR_RETURN(
      cuda::GpuPlan gpu_plan,
      cuda::MakeGpuPlan(plan, request.rank, cuda::Stripes{1, 16}));
  if (!cuda::flagged::Fits(gpu_plan)) return std::optional<cuda::GpuPlan>();
  return std::optional(std::move(gpu_plan));
}

Result<const StoredPlan*> DeviceChannel::StoredPlanFor(
    const Call& call, const pool::CallDescriptor& descriptor, Path path,
    cudaStream_t stream) {
  const std::string key = PlanKey(key_, call, descriptor, path.slots);
  if (const StoredPlan* found = plans_->Find(key)) return found;
  const auto relayed = [&](const cuda::GpuPlan& gpu_plan) {
    if (relay_ == nullptr) return std::shared_ptr<const RelayPlan>();
    return std::make_shared<const RelayPlan>(
        MakeRelayPlan(gpu_plan.sending, gpu_plan.receiving, gpu_plan.rounds,
                      members_count(), connection_.group().self));
  };
  if (path.copy_pipelines == 0) {
    CXL_ASSIGN_OR_RETURN(const std::optional<cuda::GpuPlan> gpu_plan,
                         MakeFlaggedPlan(call.request));
    if (gpu_plan)
      return plans_->Store(key, *gpu_plan, true, relayed(*gpu_plan), stream);
  }
  CXL_ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan::MakePlan(call.request, connection_.geometry(path.slots)));
  CXL_ASSIGN_OR_RETURN(
      const cuda::GpuPlan gpu_plan,
      cuda::MakeGpuPlan(plan, call.request.rank, connection_.stripes()));
  return plans_->Store(key, gpu_plan, false, relayed(gpu_plan), stream);
}

}  // namespace jax_cxl::comm
