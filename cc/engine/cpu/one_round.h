#ifndef JAX_CXL_ENGINE_CPU_ONE_ROUND_H_
#define JAX_CXL_ENGINE_CPU_ONE_ROUND_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/dtype.h"
#include "cc/base/status.h"
#include "cc/engine/cpu/executor.h"
#include "cc/engine/cpu/taken_rows.h"
#include "cc/plan/plan.h"

// Executes plans of one round without rings. A rank's *payload* consists of the
// data that the rank would otherwise put into its slot. The caller brings the
// payloads to all other ranks. A rank retrieves only after it has all payloads,
// so no step has to wait, ring or release.
//
// `rows` are the rows of an operation that moves rows, or null.
namespace jax_cxl::cpu {

// Returns true if the plan has one round, and all puts come before all gets.
bool IsOneRound(const plan::Plan& plan);

uint64_t PayloadBytes(const plan::Plan& plan);

// Returns a rank whose payload the plan of `rank` reads but `payloads` lacks,
// or -1 if there is none.
int MissingPayload(const plan::Plan& plan, int rank,
                   const std::vector<const std::byte*>& payloads);

void PutPayload(const plan::Plan& plan, const std::byte* input,
                std::byte* payload, Traffic* traffic,
                const TakenRows* rows = nullptr);

// Executes the steps of the plan that write to the output. `payloads[r]` is the
// payload of rank r, anywhere in memory. Payloads that the plan does not read,
// such as this rank's own, may be null. `sources` is scratch space.
//
// Fails if TakenRows::ReadyFor does.
Status RetrievePayloads(const plan::Plan& plan, DType dtype, ReduceOp reduce_op,
                        int rank, const std::vector<const std::byte*>& payloads,
                        const std::byte* input, std::byte* output,
                        std::vector<const std::byte*>* sources,
                        Traffic* traffic, TakenRows* rows = nullptr);

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_ONE_ROUND_H_
