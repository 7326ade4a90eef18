#include "cc/gpu/relay/relay_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace jax_cxl::comm {
namespace {

using cuda::DeviceStep;
using cuda::DeviceStepKind;

// Merges ranges of a round that touch or overlap.
std::vector<SlotRange> Joined(std::vector<SlotRange> ranges) {
  std::ranges::sort(ranges, {}, [](const SlotRange& range) {
    return std::pair(range.round, range.offset);
  });
  std::vector<SlotRange> joined;
  for (const SlotRange& range : ranges) {
    if (range.bytes == 0) continue;
    SlotRange* last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && last->round == range.round &&
        range.offset <= last->offset + last->bytes)
      last->bytes =
          std::max(last->bytes, range.offset + range.bytes - last->offset);
    else
      joined.push_back(range);
  }
  return joined;
}

}  // namespace

RelayPlan MakeRelayPlan(const cuda::GpuPlan& gpu_plan, int num_members,
                        int self) {
  RelayPlan relay_plan;
  relay_plan.rounds = gpu_plan.rounds;
  relay_plan.arrivals.resize(num_members);
  std::vector<SlotRange> written;
  // The ranges that the device reads: by member, and then by round.
  std::vector<std::map<uint64_t, std::vector<SlotRange>>> read(num_members);
  for (const DeviceStep& step : gpu_plan.sending)
    if (step.kind == DeviceStepKind::kPut)
      written.push_back({step.round, step.to, step.bytes});
  for (const DeviceStep& step : gpu_plan.receiving) {
    if (step.kind == DeviceStepKind::kRelease) {
      relay_plan.releases.push_back({step.round, {}});
      continue;
    }
    if (step.kind == DeviceStepKind::kReduceToSlot ||
        step.kind == DeviceStepKind::kReduceToBoth)
      written.push_back({step.to_round, step.to_slot, step.bytes});
    for (int member = step.first; member < step.last; ++member)
      if (member != self)
        read[member][step.round].push_back({step.round, step.from, step.bytes});
  }
  written = Joined(std::move(written));
  if (!written.empty()) relay_plan.last_written = written.back().round + 1;

  // A publication covers the ranges of its own round, and those of earlier
  // rounds that no earlier publication covers.
  auto next = written.begin();
  for (const DeviceStep& step : gpu_plan.sending) {
    if (step.kind != DeviceStepKind::kPublish) continue;
    const auto end = std::find_if(next, written.end(), [&](const auto& range) {
      return range.round > step.round;
    });
    relay_plan.publications.push_back({step.round, {next, end}});
    next = end;
  }
  for (int member = 0; member < num_members; ++member)
    for (auto& [round, ranges] : read[member])
      relay_plan.arrivals[member].push_back({round, Joined(std::move(ranges))});
  return relay_plan;
}

}  // namespace jax_cxl::comm
