#ifndef JAX_CXL_TESTING_WORLD_STATUS_TEXT_H_
#define JAX_CXL_TESTING_WORLD_STATUS_TEXT_H_

#include <string>

#include "cc/base/status.h"

namespace jax_cxl::comm {

// Returns the detail `name` of an error, or "" if the error has no such detail.
inline std::string Detail(const Status& status, const std::string& name) {
  for (const auto& [key, value] : status.details())
    if (key == name) return value;
  return "";
}

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_WORLD_STATUS_TEXT_H_
