#ifndef JAX_CXL_TESTING_INCOHERENT_OMISSION_H_
#define JAX_CXL_TESTING_INCOHERENT_OMISSION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cc/base/status.h"
#include "cc/testing/incoherent/region.h"

namespace jax_cxl::pool {

// An operation of the protocol that the emulated cache of an incoherent pool
// leaves out, as if the protocol did not do it. This is a negative control: the
// tests must notice the omission.
struct Omission {
  enum class Operation : uint8_t {
    kWriteBack,    // write-back of a stored payload or flag
    kStoreFence,   // fence after the write-back
    kInvalidate,   // drop of a payload or flag before its load
    kFenceBefore,  // fence between a flag's load and the payload's drop
    kFenceAfter,   // fence between the drop and the load
    kWait,         // the flag reads as if no wait were needed
  };

  Operation operation = Operation::kWriteBack;
  Region region = Region::kOther;

  bool operator==(const Omission&) const = default;
};

// Parses a name like "slot.write_back". Returns nothing for "".
Result<std::optional<Omission>> ParseOmission(std::string_view text);

std::string OmissionName(const Omission& omission);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_INCOHERENT_OMISSION_H_
