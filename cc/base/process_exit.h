#ifndef JAX_CXL_BASE_PROCESS_EXIT_H_
#define JAX_CXL_BASE_PROCESS_EXIT_H_

#include <cstdint>
#include <string>

namespace jax_cxl {

// Describes how a process of this host ended, for example "with status 3" or
// "by signal 9 (Killed)". `pidfd` was opened while the process ran. Returns an
// empty string if the kernel does not report it: before Linux 6.15, the kernel
// does not report it after the parent has collected the status.
std::string DescribeExit(int pidfd, int64_t pid);

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_PROCESS_EXIT_H_
