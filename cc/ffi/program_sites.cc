#include "cc/ffi/program_sites.h"

namespace jax_cxl::ffi {

ProgramSites& ProgramSites::Get() {
  // Never destroyed: XLA's threads may still ask while the process exits.
  static auto& sites = *new ProgramSites;
  return sites;
}

uint64_t ProgramSites::Next(const std::string& program) {
  std::lock_guard lock(mutex_);
  return made_[program]++;
}

void ProgramSites::Complete(const std::string& program) {
  std::lock_guard lock(mutex_);
  made_.erase(program);
}

}  // namespace jax_cxl::ffi
