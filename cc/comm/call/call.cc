#include "cc/comm/call/call.h"

#include <cstring>
#include <sstream>

namespace jax_cxl::comm {
namespace {

// FNV-1a over 32-bit values. The same on every host.
class Hash {
 public:
  void Add(uint32_t value) {
    for (int byte = 0; byte < 4; ++byte) {
      hash_ ^= (value >> (8 * byte)) & 0xff;
      hash_ *= 0x100000001b3;
    }
  }
  void Add(const std::vector<int32_t>& values) {
    for (int32_t value : values) Add(static_cast<uint32_t>(value));
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace

uint64_t HashGroup(const std::vector<int32_t>& members) {
  Hash hash;
  hash.Add(members);
  return hash.value();
}

Status Disagreement(int rank_0, const std::string& call_0, int rank_1,
                    const std::string& call_1, uint64_t identity) {
  return Error(Code::kMismatch, "the ranks disagree about a collective: rank ",
               rank_0, " calls ", call_0, "; rank ", rank_1, " calls ", call_1,
               ". ", kSamePrograms, " (call ", std::hex, identity, ")")
      .With("rank_0", rank_0)
      .With("call_0", call_0)
      .With("rank_1", rank_1)
      .With("call_1", call_1);
}

Status WasShutDown() {
  return Error(
      Code::kFailedPrecondition,
      "jax_cxl was shut down while the call was under way; wait for all "
      "results (jax.block_until_ready) before jax_cxl.shutdown()");
}

uint64_t HashDescriptor(const pool::CallDescriptor& descriptor,
                        uint64_t before) {
  uint64_t words[sizeof(descriptor) / sizeof(uint64_t)];
  std::memcpy(words, &descriptor, sizeof(words));
  uint64_t hash = 0xcbf29ce484222325 + before;
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
  Hash details;
  details.Add(call.request.sources);
  const plan::Rows& rows = call.request.rows;
  for (uint64_t value : {rows.table, rows.taken, rows.slices, rows.elements}) {
    if (value == 0) continue;
    details.Add(static_cast<uint32_t>(value));
    details.Add(static_cast<uint32_t>(value >> 32));
  }
  descriptor.details = details.value();
  return descriptor;
}

void SetSlices(Call* call, std::span<const int64_t> table) {
  call->request.rows.slice_bytes = table.size_bytes();
  call->rows = std::make_shared<cpu::TakenRows>(
      cpu::TakenRows::OfSlices(call->request, table));
}

std::string DescribeText(const Call& call) {
  std::string text = DescribeText(Describe(call), call.name);
  if (!call.site.empty()) text += " at " + call.site;
  return text;
}

std::string DescribeText(const pool::CallDescriptor& descriptor,
                         const std::string& name) {
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
  return text.str();
}

}  // namespace jax_cxl::comm
