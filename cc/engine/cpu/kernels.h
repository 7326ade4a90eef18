#ifndef JAX_CXL_ENGINE_CPU_KERNELS_H_
#define JAX_CXL_ENGINE_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "cc/base/dtype.h"

// The inner loops of the CPU engine: nothing here knows the pool.
namespace jax_cxl::cpu {

// True if `Reduce` has a kernel for this pair. bool reduces by or / and (sum
// and max are or, prod and min are and); complex types only sum and multiply;
// float8_e8m0fnu, which has neither a zero nor a sign, only has min and max.
bool CanReduce(DType dtype, ReduceOp op);

// destination[i] = ((sources[0][i] op sources[1][i]) op ...) for `count`
// elements, one pass over all sources, in the order given. float16, bfloat16
// and the float8 types accumulate in float32 and round once (to nearest even;
// beyond the largest value to infinity or, in types without one, to NaN, as
// ml_dtypes casts). min and max give NaN if any operand is NaN, and the first
// of equal operands, such as -0 and +0. Every NaN of a result is the type's
// positive quiet NaN. Integers wrap around. A single source is copied.
//
// The result of an element depends on that element's operands only, not on the
// chunking, the alignment, the processor or the thread's floating-point
// environment. `destination` may be equal to one of the sources, but must not
// overlap any of them otherwise. Pointers need only be aligned to one byte.
// Precondition: CanReduce(dtype, op) and at least one source.
void Reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> sources,
            std::byte* destination, size_t count);

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_KERNELS_H_
