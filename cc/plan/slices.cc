#include "cc/plan/slices.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace jax_cxl::plan {
namespace {

template <typename... Parts>
Status Refuse(const SliceFault& fault, const Parts&... parts) {
  const std::string element =
      fault.elements == 1
          ? ""
          : "element " + std::to_string(fault.element) + " of the batch: ";
  return Error(Code::kInvalidArgument, "ragged_all_to_all: ", element,
               parts...);
}

// Returns true if two of the slices that `receiver` gets overlap in its output.
bool SomeOverlap(const SliceTables<int64_t>& tables, uint64_t receiver) {
  std::vector<std::pair<int64_t, int64_t>> ranges;  // [first, second)
  for (uint64_t sender = 0; sender < tables.ranks; ++sender) {
    for (uint64_t s = 0; s < tables.slices(); ++s) {
      const uint64_t k = receiver * tables.slices() + s;
      const auto begin = static_cast<int64_t>(tables.OutputRow(sender, k));
      const int64_t size = tables.SendSize(sender, k);
      if (size > 0) ranges.emplace_back(begin, begin + size);
    }
  }
  std::ranges::sort(ranges);
  for (size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i - 1].second > ranges[i].first) return true;
  return false;
}

template <typename Entry>
std::vector<int64_t> Widen(std::span<const std::byte> slices) {
  std::vector<Entry> entries(slices.size() / sizeof(Entry));
  std::memcpy(entries.data(), slices.data(), slices.size());
  return {entries.begin(), entries.end()};
}

}  // namespace

Status CheckSlices(const SliceTables<int64_t>& tables) {
  const uint64_t entries = tables.entries();
  for (uint64_t rank = 0; rank < tables.ranks; ++rank)
    for (uint64_t k = 0; k < entries; ++k)
      CXL_RETURN_IF_ERROR(SliceError(CheckSlice(tables, rank, k)));
  for (uint64_t receiver = 0; receiver < tables.ranks; ++receiver) {
    if (!SomeOverlap(tables, receiver)) continue;
    for (uint64_t a = 0; a < entries; ++a)
      for (uint64_t b = a + 1; b < entries; ++b)
        CXL_RETURN_IF_ERROR(SliceError(CheckPair(tables, receiver, a, b)));
  }
  return OkStatus();
}

Status SliceError(const SliceFault& fault) {
  switch (fault.kind) {
    case SliceFault::kInput:
      return Refuse(fault, "rank ", fault.rank, ": input_offsets[", fault.entry,
                    "] = ", fault.offset, " and send_sizes[", fault.entry,
                    "] = ", fault.size, " are not within the ", fault.rows,
                    " rows of its operand");
    case SliceFault::kOutput:
      return Refuse(fault, "rank ", fault.rank, ": output_offsets[",
                    fault.entry, "] = ", fault.offset, " and send_sizes[",
                    fault.entry, "] = ", fault.size, " are not within the ",
                    fault.rows, " rows of the output");
    case SliceFault::kSizes:
      return Refuse(fault, "rank ", fault.rank, " sends ", fault.size,
                    " rows (send_sizes[", fault.entry, "]), and rank ",
                    fault.other, " expects ", fault.other_size, " (recv_sizes[",
                    fault.other_entry, "])");
    case SliceFault::kOverlap:
      return Refuse(fault, "in the output of rank ", fault.receiver, ", rows [",
                    fault.offset, ", ", fault.offset + fault.size,
                    ") from rank ", fault.rank, " and rows [",
                    fault.other_offset, ", ",
                    fault.other_offset + fault.other_size, ") from rank ",
                    fault.other, " overlap");
    default:
      return OkStatus();
  }
}

std::vector<int64_t> WideSlices(std::span<const std::byte> slices,
                                uint32_t entry_bytes) {
  return entry_bytes == sizeof(int64_t) ? Widen<int64_t>(slices)
                                        : Widen<int32_t>(slices);
}

}  // namespace jax_cxl::plan
