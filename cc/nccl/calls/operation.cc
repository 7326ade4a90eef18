#include "cc/nccl/calls/operation.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace jax_cxl::nccl {
namespace {

struct VerbTraits {
  std::string_view name;
  plan::Op op;
};

constexpr std::array<VerbTraits, 10> kVerbs = {{
    {"ncclAllReduce", plan::Op::kAllReduce},
    {"ncclBroadcast", plan::Op::kBroadcast},
    {"ncclReduce", plan::Op::kReduce},
    {"ncclAllGather", plan::Op::kAllGather},
    {"ncclReduceScatter", plan::Op::kReduceScatter},
    {"ncclAlltoAll", plan::Op::kAllToAll},
    {"ncclGather", plan::Op::kGather},
    {"ncclScatter", plan::Op::kScatter},
    {"ncclSend", plan::Op::kBroadcast},
    {"ncclRecv", plan::Op::kBroadcast},
}};

const VerbTraits& TraitsOf(Verb verb) {
  return kVerbs[static_cast<size_t>(verb)];
}

Status CheckArguments(const Operation& operation, int size) {
  const std::string_view name = NameOf(operation.verb);
  CXL_RETURN_IF_ERROR(CheckType(name, operation.type));
  if (operation.root < 0 || operation.root >= size)
    return Error(Code::kInvalidArgument, name, ": there is no rank ",
                 operation.root, "; the ranks of this communicator are 0 to ",
                 size - 1);
  const uint64_t element = DTypeBytes(kTypes[operation.type]);
  constexpr uint64_t kMostBytes = std::numeric_limits<int64_t>::max();
  if (operation.count > kMostBytes / element / size)
    return Error(Code::kInvalidArgument, name, ": ", operation.count,
                 " elements are more than any memory holds; check the count");
  return OkStatus();
}

Status CheckBuffers(const Operation& operation, bool reads, bool writes) {
  if (operation.count == 0) return OkStatus();
  const char* missing = reads && operation.input == nullptr     ? "send"
                        : writes && operation.output == nullptr ? "receive"
                                                                : nullptr;
  if (missing == nullptr) return OkStatus();
  return Error(Code::kInvalidArgument, NameOf(operation.verb), ": the ",
               missing,
               " buffer is null; pass the address of memory of the GPU");
}

Status SetReduction(const Operation& operation, int size,
                    const Reductions& reductions, Collective* collective) {
  // Indexed by ncclRedOp_t.
  constexpr std::array<ReduceOp, kNumOps> kReduceOps = {
      ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin,
      ReduceOp::kSum};
  const int reduction = operation.reduction;
  if (reduction >= 0 && reduction < kNumOps) {
    collective->call.reduce_op = kReduceOps[reduction];
    if (reduction == kAvg) collective->divisor = static_cast<uint32_t>(size);
    return OkStatus();
  }
  collective->call.reduce_op = ReduceOp::kSum;
  CXL_ASSIGN_OR_RETURN(
      collective->factor,
      reductions.Find(NameOf(operation.verb), reduction, operation.type));
  return OkStatus();
}

// Pairs the sends of a rank to itself with its receives from itself. Omits
// those that move nothing.
Result<std::vector<Transfer>> MatchLocal(
    const std::vector<Transfer>& transfers) {
  std::vector<Transfer> sends, receives;
  for (const Transfer& transfer : transfers) {
    if (!transfer.local()) continue;
    (transfer.output == nullptr ? sends : receives).push_back(transfer);
  }
  if (sends.size() != receives.size())
    return Error(Code::kInvalidArgument, "a rank sends to itself ",
                 sends.size(), " times and receives from itself ",
                 receives.size(),
                 " times in one group of calls: put matching ncclSend and "
                 "ncclRecv between one ncclGroupStart and ncclGroupEnd");
  for (size_t i = 0; i < sends.size(); ++i) {
    if (sends[i].bytes != receives[i].bytes)
      return Error(Code::kInvalidArgument, "a rank sends ", sends[i].bytes,
                   " bytes to itself and receives ", receives[i].bytes,
                   ": give ncclSend and ncclRecv the same count and type");
    receives[i].input = sends[i].input;
  }
  std::erase_if(receives, [](const Transfer& transfer) {
    return transfer.bytes == 0 || transfer.input == transfer.output;
  });
  return receives;
}

}  // namespace

std::string_view NameOf(Verb verb) { return TraitsOf(verb).name; }

Result<Collective> MakeCollective(const Operation& operation, int rank,
                                  int size, const Reductions& reductions) {
  CXL_RETURN_IF_ERROR(CheckArguments(operation, size));
  const VerbTraits& traits = TraitsOf(operation.verb);
  const bool root = operation.root == rank;
  const bool from_root =
      operation.verb == Verb::kBroadcast || operation.verb == Verb::kScatter;
  const bool to_root =
      operation.verb == Verb::kReduce || operation.verb == Verb::kGather;
  CXL_RETURN_IF_ERROR(
      CheckBuffers(operation, !from_root || root, !to_root || root));
  Collective collective;
  comm::Call& call = collective.call;
  call.name = traits.name;
  call.dtype = kTypes[operation.type];
  call.request.op = traits.op;
  call.request.num_ranks = size;
  call.request.rank = rank;
  call.request.count = operation.count;
  call.request.element_bytes = static_cast<uint32_t>(DTypeBytes(call.dtype));
  if (from_root || to_root) call.request.root = operation.root;
  call.input = static_cast<const std::byte*>(operation.input);
  call.output = static_cast<std::byte*>(operation.output);
  if (plan::Reduces(traits.op)) {
    collective.reduction = operation.reduction;
    CXL_RETURN_IF_ERROR(SetReduction(operation, size, reductions, &collective));
    if (collective.divisor > 0) call.name += " (avg)";
    if (collective.factor) call.name += " (premultiplied)";
  }
  return collective;
}

Result<Transfer> MakeTransfer(const Operation& operation, int rank, int size) {
  CXL_RETURN_IF_ERROR(CheckArguments(operation, size));
  const bool sends = operation.verb == Verb::kSend;
  CXL_RETURN_IF_ERROR(CheckBuffers(operation, sends, !sends));
  Transfer transfer;
  transfer.source = sends ? rank : operation.root;
  transfer.destination = sends ? operation.root : rank;
  transfer.input = operation.input;
  transfer.output = operation.output;
  transfer.bytes = operation.count * DTypeBytes(kTypes[operation.type]);
  transfer.stream = operation.stream;
  return transfer;
}

comm::Call CallOf(const Transfer& transfer, int rank) {
  comm::Call call;
  call.name = "ncclSend";  // the same on both sides
  call.dtype = DType::kUint8;
  call.request.op = plan::Op::kBroadcast;
  call.request.num_ranks = 2;
  call.request.rank = rank == transfer.source ? 0 : 1;
  call.request.root = 0;
  call.request.count = transfer.bytes;
  call.request.element_bytes = 1;
  call.input = static_cast<const std::byte*>(transfer.input);
  call.output = static_cast<std::byte*>(transfer.output);
  return call;
}

// The k-th transfer of a channel between ranks that are d apart goes into batch
// (k, (d - 1) / distances). For each k and d, a rank has at most one send and
// one receive.
Result<Batches> MakeBatches(const std::vector<Transfer>& transfers, int rank,
                            int size, int most) {
  const int distances = std::max(1, most / 2);
  CXL_ASSIGN_OR_RETURN(const std::vector<Transfer> local,
                       MatchLocal(transfers));
  std::map<std::pair<int, int>, int> count;  // by channel
  std::map<std::pair<int, int>, std::vector<Transfer>> batches;
  for (const Transfer& transfer : transfers) {
    const int source = transfer.source, destination = transfer.destination;
    if (transfer.local() || transfer.bytes == 0) continue;
    if (source != rank && destination != rank)
      return Error(Code::kInternal, "rank ", rank,
                   " was given the transfer of rank ", source, " to rank ",
                   destination, "; please report this to jax_cxl");
    const int k = count[{source, destination}]++;
    const int distance = (destination - source + size) % size;
    batches[{k, (distance - 1) / distances}].push_back(transfer);
  }
  Batches result;
  for (auto& [number, batch] : batches) result.push_back(std::move(batch));
  if (result.empty() && !local.empty()) result.emplace_back();
  if (!local.empty())
    result[0].insert(result[0].end(), local.begin(), local.end());
  return result;
}

}  // namespace jax_cxl::nccl
