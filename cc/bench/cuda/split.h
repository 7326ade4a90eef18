#ifndef JAX_CXL_BENCH_CUDA_SPLIT_H_
#define JAX_CXL_BENCH_CUDA_SPLIT_H_

#include <sstream>
#include <string>
#include <vector>

namespace jax_cxl::comm {

// Returns the parts of `text` between the separators.
inline std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);)
    parts.push_back(part);
  return parts;
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_BENCH_CUDA_SPLIT_H_
