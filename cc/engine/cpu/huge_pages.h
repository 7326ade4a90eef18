#ifndef JAX_CXL_ENGINE_CPU_HUGE_PAGES_H_
#define JAX_CXL_ENGINE_CPU_HUGE_PAGES_H_

#include <cstddef>
#include <cstdint>

namespace jax_cxl::cpu {

// Asks Linux to back a large output with huge pages. XLA allocates new memory
// for large outputs, so each call touches pages for the first time. With pages
// of 4 KiB, these page faults take longer than the copies into the output.
//
// Does nothing for outputs without a whole huge page, and where Linux has no
// huge pages. The bytes and their addresses stay as they are.
void PreferHugePages(void* output, uint64_t bytes);

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_HUGE_PAGES_H_
