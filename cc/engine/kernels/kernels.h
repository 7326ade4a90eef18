#ifndef JAX_CXL_ENGINE_KERNELS_KERNELS_H_
#define JAX_CXL_ENGINE_KERNELS_KERNELS_H_

#include <cstddef>
#include <span>

#include "cc/base/dtype.h"

// The reductions of the CPU engine. They work on any memory, and do not depend
// on the pool.
namespace jax_cxl::cpu {

// Computes destination[i] = ((sources[0][i] op sources[1][i]) op ...) for
// `count` elements, in one pass over all sources, in the order given.
//
// float16, bfloat16 and the float8 types accumulate in float32 and round once,
// to nearest even. Results beyond the largest number become infinity, or NaN in
// types without infinity, as in ml_dtypes. min and max give NaN if any operand
// is NaN. If operands are equal, such as -0 and +0, they give the first one. A
// result that is NaN is always the type's positive quiet NaN. Integers wrap
// around. A single source is copied.
//
// The result of an element depends only on that element's operands. It does not
// depend on the chunking, the alignment, the processor or the thread's
// floating-point environment. `destination` may equal one of the sources, but
// must not overlap them in another way. Pointers need no alignment.
//
// Precondition: at least one source, and a type that has `op`. Only bool and
// integers have `and` and `or`. For bool, sum and max mean `or`, and prod and
// min mean `and`. Complex types only have sum and prod. float8_e8m0fnu has
// neither a zero nor a sign, so it only has min and max.
void Reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> sources,
            std::byte* destination, size_t count);

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_KERNELS_KERNELS_H_
