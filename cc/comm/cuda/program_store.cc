#include "cc/comm/cuda/program_store.h"

#include <algorithm>
#include <utility>

#include "cc/engine/cuda/flagged/flagged.h"

namespace jax_cxl::comm {
namespace {

// 36 MiB: messages of 64 GiB in slots of 1 MiB, or hundreds of smaller ones.
constexpr uint64_t kSteps = uint64_t{1} << 19;

}  // namespace

Status ProgramStore::Open() {
  CXL_ASSIGN_OR_RETURN(steps_, AllocateDevice<cuda::DeviceStep>(kSteps));
  CXL_ASSIGN_OR_RETURN(source_, AllocatePinned<cuda::DeviceStep>(kSteps));
  return OkStatus();
}

const StoredProgram* ProgramStore::Find(const std::string& key) const {
  auto found = programs_.find(key);
  return found == programs_.end() ? nullptr : &found->second;
}

// A job's collectives recur: so many different ones mean that shapes change all
// the time, and that the old ones will not come back.
Status ProgramStore::Clear() {
  used_ = 0;
  programs_.clear();
  return cuda::CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

Result<const StoredProgram*> ProgramStore::Store(
    const std::string& key, const cuda::Program& program, bool flagged,
    std::shared_ptr<const RelayProgram> relay, cudaStream_t stream) {
  const uint64_t sending = program.sending.size();
  const uint64_t receiving = program.receiving.size();
  if (sending + receiving > kSteps)
    return Error(Code::kResourceExhausted, "a collective of ",
                 sending + receiving, " steps, at most ", kSteps,
                 " fit: communicate in several parts, or set "
                 "JAX_CXL_SLOT_BYTES higher");
  if (used_ + sending + receiving > kSteps) CXL_RETURN_IF_ERROR(Clear());
  cuda::DeviceStep* source = source_.get() + used_;
  cuda::DeviceStep* steps = steps_.get() + used_;
  std::copy(program.sending.begin(), program.sending.end(), source);
  std::copy(program.receiving.begin(), program.receiving.end(),
            source + sending);
  if (!flagged)  // Those travel with each launch.
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaMemcpyAsync(steps, source,
                        (sending + receiving) * sizeof(cuda::DeviceStep),
                        cudaMemcpyHostToDevice, stream),
        "copying a program to the device"));
  used_ += sending + receiving;
  StoredProgram stored;
  stored.sending = steps;
  stored.receiving = steps + sending;
  stored.host_sending = source;
  stored.host_receiving = source + sending;
  stored.num_sending = static_cast<uint32_t>(sending);
  stored.num_receiving = static_cast<uint32_t>(receiving);
  stored.rounds = program.rounds;
  stored.bytes_published = program.bytes_published;
  stored.bytes_retrieved = program.bytes_retrieved;
  stored.flagged = flagged;
  stored.relay = std::move(relay);
  if (flagged) stored.flagged_blocks = cuda::FlaggedBlocks(program);
  return &(programs_[key] = stored);
}

}  // namespace jax_cxl::comm
