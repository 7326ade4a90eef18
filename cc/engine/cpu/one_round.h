#ifndef JAX_CXL_ENGINE_CPU_ONE_ROUND_H_
#define JAX_CXL_ENGINE_CPU_ONE_ROUND_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/dtype.h"
#include "cc/engine/cpu/executor.h"
#include "cc/plan/plan.h"

// Plans of one round without rings: what a rank would put into its slot, its
// *payload*, travels to all others by some other way, and each rank retrieves
// once it has the payloads of all. Waits, doorbells and releases then have
// nothing left to do.
namespace jax_cxl::cpu {

// True if the plan puts first and retrieves then, in one round.
bool IsOneRound(const plan::Plan& plan);

// Bytes of the payload that the plan puts.
uint64_t PayloadBytes(const plan::Plan& plan);

// A rank whose payload rank `rank`'s plan reads and that has none in
// `payloads`; -1 if there is no such rank.
int MissingPayload(const plan::Plan& plan, int rank,
                   const std::vector<const std::byte*>& payloads);

void PutPayload(const plan::Plan& plan, const std::byte* input,
                std::byte* payload, Traffic* traffic);

// `payloads[r]` is what rank r put, wherever that is; what the plan does not
// read (my own, among others) may be null. Reorders nothing and keeps nothing;
// `sources` is scratch.
void RetrievePayloads(const plan::Plan& plan, DType dtype, ReduceOp reduce_op,
                      int rank, const std::vector<const std::byte*>& payloads,
                      const std::byte* input, std::byte* output,
                      std::vector<const std::byte*>* sources, Traffic* traffic);

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_ONE_ROUND_H_
