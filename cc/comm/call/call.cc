#include "cc/comm/call/call.h"

#include <cstring>
#include <numeric>
#include <span>
#include <sstream>
#include <utility>

#include "cc/plan/slices.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kHashOfNothing = 0xcbf29ce484222325;

// Returns a hash of `before` and `value`: FNV-1a over 32-bit values. It is the
// same on every host.
uint64_t Hash(uint64_t before, uint32_t value) {
  uint64_t hash = before;
  for (int bit = 0; bit < 32; bit += 8)
    hash = (hash ^ (value >> bit & 0xff)) * 0x100000001b3;
  return hash;
}

}  // namespace

uint64_t HashGroup(const std::vector<int32_t>& members) {
  return std::accumulate(members.begin(), members.end(), kHashOfNothing, Hash);
}

Status Disagreement(const Group& group, Version first, Version second) {
  if (first.member > second.member) std::swap(first, second);
  const int rank_0 = group.members[first.member];
  const int rank_1 = group.members[second.member];
  return Error(Code::kMismatch, "the ranks disagree about a collective: rank ",
               rank_0, " calls ", first.call, "; rank ", rank_1, " calls ",
               second.call, ". ", kSamePrograms)
      .With("rank_0", rank_0)
      .With("call_0", first.call)
      .With("rank_1", rank_1)
      .With("call_1", second.call);
}

Status WasShutDown() {
  return Error(
      Code::kFailedPrecondition,
      "jax_cxl was shut down while the call was under way; wait for all "
      "results (jax.block_until_ready) before jax_cxl.shutdown()");
}

Status LeftOut(const Call& call) {
  return Error(Code::kMismatch, "other ranks have left out ",
               DescribeText(call), ", in launch ", call.launch, " of ",
               call.program == nullptr ? "a program" : *call.program,
               ", because the launch has failed there. A host callback has "
               "also failed on this rank, maybe in this launch");
}

uint64_t HashDescriptor(const pool::CallDescriptor& descriptor,
                        uint64_t before) {
  uint64_t words[sizeof(descriptor) / sizeof(uint64_t)];
  std::memcpy(words, &descriptor, sizeof(words));
  uint64_t hash = kHashOfNothing + before;
  for (uint64_t word : words) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

pool::CallDescriptor Describe(const Call& call) {
  pool::CallDescriptor descriptor;
  descriptor.op = static_cast<uint8_t>(call.request.op);
  descriptor.reduce_op =
      plan::Reduces(call.request.op) ? static_cast<uint8_t>(call.reduce_op) : 0;
  descriptor.dtype = static_cast<uint8_t>(call.dtype);
  descriptor.root = call.request.root;
  descriptor.count = call.request.count;
  if (call.request.reverse) descriptor.flags |= pool::CallDescriptor::kReverse;
  if (call.in_levels) descriptor.flags |= pool::CallDescriptor::kInLevels;
  descriptor.details = HashGroup(call.request.sources);
  const plan::Rows& rows = call.request.rows;
  for (uint64_t value : {rows.table, rows.taken, rows.slices, rows.elements}) {
    if (value == 0) continue;
    descriptor.details = Hash(descriptor.details, value);
    descriptor.details = Hash(descriptor.details, value >> 32);
  }
  return descriptor;
}

void SetRows(Call* call) {
  const plan::Request& request = call->request;
  const RowOperands& operands = call->row_operands;
  if (request.op == plan::Op::kTakeRows) {
    const std::span indices(operands.indices, request.rows.taken);
    cpu::ZeroRows(request, indices, call->output);
    call->rows = std::make_shared<cpu::TakenRows>(cpu::TakenRows::Of(
        request, indices,
        {operands.published,
         operands.published == nullptr ? 0 : request.rows.table}));
  } else {
    const auto* slices = static_cast<const std::byte*>(operands.slices);
    const uint64_t bytes =
        plan::SliceEntries(request) * operands.slice_entry_bytes;
    const std::vector<int64_t> table =
        plan::WideSlices({slices, bytes}, operands.slice_entry_bytes);
    call->request.rows.slice_bytes = table.size() * sizeof(int64_t);
    call->rows = std::make_shared<cpu::TakenRows>(
        cpu::TakenRows::OfSlices(request, table));
  }
}

std::string DescribeText(const Call& call) {
  return DescribeText(Describe(call), call.name, call.site);
}

std::string DescribeText(const pool::CallDescriptor& descriptor,
                         const std::string& name, const std::string& site) {
  const auto op = static_cast<plan::Op>(descriptor.op);
  std::ostringstream text;
  text << name << ": " << plan::OpName(op);
  if (plan::Reduces(op))
    text << " " << ReduceOpName(static_cast<ReduceOp>(descriptor.reduce_op));
  text << " of " << descriptor.count << " "
       << DTypeName(static_cast<DType>(descriptor.dtype));
  if (plan::HasRoot(op)) text << ", root " << descriptor.root;
  if (descriptor.flags & pool::CallDescriptor::kReverse) text << ", reverse";
  if (descriptor.flags & pool::CallDescriptor::kInLevels) text << ", in levels";
  if (!site.empty()) text << " at " << site;
  return text.str();
}

}  // namespace jax_cxl::comm
