#ifndef JAX_CXL_FFI_CALL_CONTRACT_H_
#define JAX_CXL_FFI_CALL_CONTRACT_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "xla/ffi/api/ffi.h"

// The contract between lowered programs and the handlers that XLA calls: the
// names of the custom-call targets, and the attributes of a call.
// jax_cxl/_lowering/contract.py defines the same names in Python.
// tests/ops/names_test.py compares both files.
namespace jax_cxl::ffi {

// On CPUs, the function of a handler is named like its target. On GPUs, it is
// named jax_cxl_cuda_collective and so on.
inline constexpr std::array kTargets = {
    "jax_cxl_collective", "jax_cxl_rows", "jax_cxl_barrier",
    // On GPUs, a call can be split into a start and a done. The start returns a
    // token, which the done of the same call takes.
    "jax_cxl_start", "jax_cxl_start_rows", "jax_cxl_done", "jax_cxl_tie",
    // Checks the slices of a ragged_all_to_all. This target moves nothing
    // through the pool.
    "jax_cxl_check_slices",
    // Take rows of a table in a store (cc/ffi/store/table.h).
    "jax_cxl_table", "jax_cxl_start_table", "jax_cxl_table_done",
    // Move residuals to a store and back (cc/ffi/store/residuals.h).
    "jax_cxl_put_residual", "jax_cxl_get_residual"};

using Int32s = xla::ffi::Span<const int32_t>;
using Int64s = xla::ffi::Span<const int64_t>;

// Expands to V(type, name) for each attribute of a call.
// jax_cxl/_lowering/contract.py explains the attributes.
#define JAX_CXL_CALL_ATTRIBUTES(V) \
  V(std::string_view, name)        \
  V(int32_t, op)                   \
  V(int32_t, reduce_op)            \
  V(int32_t, dtype)                \
  V(int64_t, count)                \
  V(int32_t, root)                 \
  V(int32_t, group_size)           \
  V(Int32s, groups)                \
  V(Int32s, sources)               \
  V(int32_t, reverse)              \
  V(Int64s, rows)                  \
  V(int32_t, processes)            \
  V(Int32s, places)                \
  V(int32_t, generation)           \
  V(std::string_view, program)     \
  V(int64_t, site)

// The name of an attribute, and its type: "int32", "int32s", "int64", "int64s"
// or "text".
using AttributeType = std::pair<std::string_view, std::string_view>;

template <typename T>
constexpr std::string_view TypeName() {
  if constexpr (std::is_same_v<T, int32_t>) return "int32";
  if constexpr (std::is_same_v<T, int64_t>) return "int64";
  if constexpr (std::is_same_v<T, Int32s>) return "int32s";
  if constexpr (std::is_same_v<T, Int64s>) return "int64s";
  if constexpr (std::is_same_v<T, std::string_view>) return "text";
}

#define JAX_CXL_TYPE(type, name) AttributeType{#name, TypeName<type>()},
inline constexpr std::array kAttributeTypes = {
    JAX_CXL_CALL_ATTRIBUTES(JAX_CXL_TYPE)};
#undef JAX_CXL_TYPE

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_CALL_CONTRACT_H_
