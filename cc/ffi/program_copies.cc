#include "cc/ffi/program_copies.h"

namespace jax_cxl::ffi {

ProgramCopies& ProgramCopies::Get() {
  // Never destroyed: XLA's threads may still ask while the process exits.
  static auto& copies = *new ProgramCopies;
  return copies;
}

uint32_t ProgramCopies::Next(int32_t program, int32_t site) {
  std::lock_guard lock(mutex_);
  Copies& copies = programs_[program][site];
  const uint32_t index = copies.made++;
  return copies.per_load == 0 ? index : index % copies.per_load;
}

void ProgramCopies::Complete(int32_t program) {
  std::lock_guard lock(mutex_);
  auto found = programs_.find(program);
  if (found == programs_.end()) return;
  for (auto& [site, copies] : found->second)
    if (copies.per_load == 0) copies.per_load = copies.made;
}

}  // namespace jax_cxl::ffi
