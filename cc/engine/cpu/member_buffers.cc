#include "cc/engine/cpu/member_buffers.h"

#include <algorithm>
#include <utility>

#include "cc/engine/kernels/kernels.h"
#include "cc/pool/layout/geometry.h"

namespace jax_cxl::cpu {

using plan::Op;

bool HasLevels(Op op) {
  return op == Op::kAllReduce || op == Op::kBroadcast ||
         op == Op::kReduceScatter || op == Op::kAllGather ||
         op == Op::kAllToAll;
}

MemberBuffers::MemberBuffers(std::shared_ptr<const ProcessBuffers> process,
                             int member, uint64_t past_caches_bytes)
    : process_(std::move(process)),
      member_(member),
      op_(process_->request.op),
      block_(process_->request.count * process_->request.element_bytes),
      copy_(plan::OutputBytes(process_->request) >= past_caches_bytes
                ? CopyPastCaches
                : CopyBytes) {}

plan::Request MemberBuffers::RequestOf(int process) const {
  const Grid& grid = process_->grid;
  plan::Request request = process_->request;
  request.num_ranks = grid.processes;
  request.rank = process;
  if (op_ == Op::kAllReduce || op_ == Op::kBroadcast)
    request.count =
        (PartBegin(member_ + 1) - PartBegin(member_)) / request.element_bytes;
  if (op_ == Op::kAllToAll) request.count *= grid.per_process;
  if (op_ == Op::kBroadcast) request.root = grid.Find(request.root).first;
  return request;
}

// Returns the first byte of the member's part. Parts begin on cache lines of
// their own.
uint64_t MemberBuffers::PartBegin(int member) const {
  const uint64_t members = process_->grid.per_process;
  const uint64_t part =
      pool::RoundUp((block_ + members - 1) / members, plan::kSlotAlignment);
  return std::min(member * part, block_);
}

void MemberBuffers::Read(uint64_t from, std::byte* to, uint64_t bytes) const {
  while (bytes > 0) {
    const Run run = InputRun(from);
    const uint64_t size = std::min(bytes, run.bytes);
    if (run.rank == kAll) {
      std::vector<const std::byte*> sources;
      for (const std::byte* input : process_->inputs)
        sources.push_back(input + run.offset);
      Reduce(process_->dtype, process_->reduce_op, sources, to,
             size / process_->request.element_bytes);
    } else {
      CopyBytes(to, process_->inputs[run.rank] + run.offset, size);
    }
    from += size;
    to += size;
    bytes -= size;
  }
}

void MemberBuffers::Write(uint64_t to, const std::byte* from,
                          uint64_t bytes) const {
  while (bytes > 0) {
    const Run run = OutputRun(to);
    const uint64_t size = std::min(bytes, run.bytes);
    if (run.rank != kAll)
      copy_(process_->outputs[run.rank] + run.offset, from, size);
    else
      for (std::byte* output : process_->outputs)
        copy_(output + run.offset, from, size);
    from += size;
    to += size;
    bytes -= size;
  }
}

void MemberBuffers::Copy(uint64_t from, uint64_t to, uint64_t bytes) const {
  if (reduces()) {
    Read(from, Own(to), bytes);
    WriteOthers(to, bytes);
    return;
  }
  while (bytes > 0) {
    const Run run = InputRun(from);
    const uint64_t size = std::min(bytes, run.bytes);
    Write(to, process_->inputs[run.rank] + run.offset, size);
    from += size;
    to += size;
    bytes -= size;
  }
}

std::byte* MemberBuffers::Own(uint64_t to) const {
  return process_->outputs[member_] + OutputRun(to).offset;
}

void MemberBuffers::WriteOthers(uint64_t to, uint64_t bytes) const {
  const Run run = OutputRun(to);
  if (run.rank != kAll) return;
  const std::byte* own = process_->outputs[member_] + run.offset;
  for (std::byte* output : process_->outputs)
    if (output + run.offset != own) copy_(output + run.offset, own, bytes);
}

MemberBuffers::Run MemberBuffers::InputRun(uint64_t from) const {
  const Grid& grid = process_->grid;
  const uint64_t ranks = grid.per_process;
  switch (op_) {
    case Op::kAllReduce:
      return {kAll, PartBegin(member_) + from};
    case Op::kBroadcast:
      // Only the process of the root reads inputs. So this is the root's index
      // in this process.
      return {grid.Find(process_->request.root).second,
              PartBegin(member_) + from};
    case Op::kReduceScatter:
      return BlockRun(kAll, grid.At(from / block_, member_), from);
    case Op::kAllToAll: {
      // In this member's input, blocks are ordered by the process of their
      // target, and then by the source's index in this process.
      const uint64_t index = from / block_;
      return BlockRun(index % ranks, grid.At(index / ranks, member_), from);
    }
    default:
      return {member_, from};
  }
}

MemberBuffers::Run MemberBuffers::OutputRun(uint64_t to) const {
  const Grid& grid = process_->grid;
  const uint64_t ranks = grid.per_process;
  switch (op_) {
    case Op::kAllReduce:
    case Op::kBroadcast:
      return {kAll, PartBegin(member_) + to};
    case Op::kAllGather:
      return BlockRun(kAll, grid.At(to / block_, member_), to);
    case Op::kAllToAll: {
      // In this member's output, blocks are ordered by the process of their
      // source, and then by the source's index in that process.
      const uint64_t index = to / block_;
      return BlockRun(member_, grid.At(index / ranks, index % ranks), to);
    }
    default:
      return {member_, to};
  }
}

}  // namespace jax_cxl::cpu
