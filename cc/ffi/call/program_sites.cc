#include "cc/ffi/call/program_sites.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace jax_cxl::ffi {

namespace {

std::atomic<ProgramSites*>& Current() {
  // Never destroyed, because XLA's threads may still use the object while the
  // process exits.
  static auto& current = *new std::atomic<ProgramSites*>(new ProgramSites);
  return current;
}

}  // namespace

uint32_t LoadedProgram::FirstLaunch(uint32_t launch) const {
  int64_t first = first_launch->load(std::memory_order_relaxed);
  if (first < 0 && first_launch->compare_exchange_strong(first, launch))
    return launch;
  return static_cast<uint32_t>(first);
}

ProgramSites& ProgramSites::Get() { return *Current(); }

void ProgramSites::Use(ProgramSites* sites) { Current() = sites; }

uint64_t ProgramSites::Next(const std::string& program) {
  std::lock_guard lock(mutex_);
  return loads_[program].numbered++;
}

void ProgramSites::Begin(const std::string& program) {
  std::lock_guard lock(mutex_);
  loads_.erase(program);
}

std::shared_ptr<const LoadedProgram> ProgramSites::Loading(
    const std::string& program, int generation) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<LoadedProgram>& loaded = loads_[program].program;
  if (loaded == nullptr) {
    loaded = std::make_shared<LoadedProgram>();
    loaded->name = std::make_shared<const std::string>(program);
    loaded->generation = generation;
  }
  return loaded;
}

bool ProgramSites::HasSites(const std::string& program) {
  std::lock_guard lock(mutex_);
  const auto load = loads_.find(program);
  return load != loads_.end() && load->second.program != nullptr;
}

void ProgramSites::Complete(const std::string& program, uint64_t hash,
                            uint32_t run_ids_from) {
  std::lock_guard lock(mutex_);
  const auto load = loads_.find(program);
  if (load == loads_.end()) return;
  if (LoadedProgram* loaded = load->second.program.get()) {
    // An odd number of 64 bits, so that small generations change all bits.
    hash ^= static_cast<uint64_t>(loaded->generation) * 0x9e3779b97f4a7c15;
    Count& count = counts_[hash];
    if (count.first_launch == nullptr)
      count = {run_ids_from, std::make_shared<std::atomic<int64_t>>(-1)};
    loaded->hash = hash;
    loaded->run_ids_from = run_ids_from;
    loaded->first_launch = count.first_launch;
    loaded->counted_apart = count.run_ids_from != run_ids_from;
    loaded->lines = std::move(load->second.lines);
    loaded->complete.store(true, std::memory_order_release);
  }
  loads_.erase(load);
}

void ProgramSites::NoteNumberedLine(const std::string& program, int64_t number,
                                    const std::string& line) {
  std::lock_guard lock(mutex_);
  loads_[program].lines[number] = line;
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
