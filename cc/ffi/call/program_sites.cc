#include "cc/ffi/call/program_sites.h"

#include <algorithm>
#include <atomic>

namespace jax_cxl::ffi {

namespace {

std::atomic<ProgramSites*>& Current() {
  // Never destroyed, because XLA's threads may still use the object while the
  // process exits.
  static auto& current = *new std::atomic<ProgramSites*>(new ProgramSites);
  return current;
}

}  // namespace

ProgramSites& ProgramSites::Get() { return *Current(); }

void ProgramSites::Use(ProgramSites* sites) { Current() = sites; }

uint64_t ProgramSites::Next(const std::string& program) {
  std::lock_guard lock(mutex_);
  return made_[program]++;
}

void ProgramSites::Complete(const std::string& program) {
  std::lock_guard lock(mutex_);
  made_.erase(program);
}

void ProgramSites::NoteLine(const std::string& program, const std::string& key,
                            const std::string& line) {
  std::lock_guard lock(mutex_);
  std::vector<std::string>& lines = lines_[program][key];
  if (std::ranges::find(lines, line) == lines.end()) lines.push_back(line);
}

std::string ProgramSites::LinesOf(const std::string& program,
                                  const std::string& key) {
  std::lock_guard lock(mutex_);
  std::string text;
  for (const std::string& line : lines_[program][key])
    text += (text.empty() ? "" : " or ") + line;
  return text;
}

void ProgramSites::ForgetLines(const std::string& program) {
  std::lock_guard lock(mutex_);
  lines_.erase(program);
}

}  // namespace jax_cxl::ffi
