#include "cc/testing/incoherent/omission.h"

#include <array>

namespace jax_cxl::pool {
namespace {

constexpr std::array<std::string_view, 6> kOperationNames = {
    "write_back",   "store_fence", "invalidate",
    "fence_before", "fence_after", "wait"};

}  // namespace

Result<std::optional<Omission>> ParseOmission(std::string_view text) {
  if (text.empty()) return std::optional<Omission>();
  for (int region = 0; region < kNumRegions; ++region) {
    for (size_t i = 0; i < kOperationNames.size(); ++i) {
      const Omission omission{static_cast<Omission::Operation>(i),
                              static_cast<Region>(region)};
      if (text == OmissionName(omission)) return std::optional(omission);
    }
  }
  return Error(Code::kInvalidArgument, "'", text,
               "' is nothing that an incoherent pool can leave out; write for "
               "example slot.write_back or released.wait");
}

std::string OmissionName(const Omission& omission) {
  return std::string(RegionName(omission.region)) + "." +
         std::string(kOperationNames[static_cast<size_t>(omission.operation)]);
}

}  // namespace jax_cxl::pool
