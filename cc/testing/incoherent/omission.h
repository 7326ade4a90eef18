#ifndef JAX_CXL_TESTING_INCOHERENT_OMISSION_H_
#define JAX_CXL_TESTING_INCOHERENT_OMISSION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cc/base/status.h"
#include "cc/testing/incoherent/region.h"

namespace jax_cxl::pool {

// Negative controls: what the emulated cache of an incoherent pool leaves out,
// to show that the tests would notice if the protocol did.
struct Omission {
  enum class Operation : uint8_t {
    kWriteBack,    // of a payload or flag just stored
    kStoreFence,   // after it
    kInvalidate,   // of a payload or flag about to be loaded
    kFenceBefore,  // between a flag's load and the payload's invalidation
    kFenceAfter,   // between the invalidation and the load
    kWait,         // the flag reads as if nothing had to be waited for
  };

  Operation operation = Operation::kWriteBack;
  Region region = Region::kOther;

  bool operator==(const Omission&) const = default;
};

// "slot.write_back" and the like; nothing for "".
Result<std::optional<Omission>> ParseOmission(std::string_view text);

std::string OmissionName(const Omission& omission);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_INCOHERENT_OMISSION_H_
