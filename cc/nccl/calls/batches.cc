#include "cc/nccl/calls/batches.h"

#include <algorithm>
#include <map>
#include <utility>

namespace jax_cxl::nccl {
namespace {

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
