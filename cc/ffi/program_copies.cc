#include "cc/ffi/program_copies.h"

namespace jax_cxl::ffi {

ProgramCopies& ProgramCopies::Get() {
  // Never destroyed: XLA's threads may still ask while the process exits.
  static auto& copies = *new ProgramCopies;
  return copies;
}

uint32_t ProgramCopies::Next(const std::string& program, int32_t site) {
  std::lock_guard lock(mutex_);
  return made_[program][site]++;
}

void ProgramCopies::Complete(const std::string& program) {
  std::lock_guard lock(mutex_);
  made_.erase(program);
}

}  // namespace jax_cxl::ffi
