#include "cc/ffi/errors/failures.h"

#include <algorithm>

namespace jax_cxl::ffi {
namespace {

std::string Text(const Status& status) {
  return "jax_cxl: " + std::string(CodeName(status.code())) + ": " +
         status.message();
}

// Never destroyed: XLA's threads may still fail while the process exits.
Failures*& Instance() {
  static Failures* current = new Failures;
  return current;
}

}  // namespace

Failures& Failures::Get() { return *Instance(); }

void Failures::Use(Failures* failures) { Instance() = failures; }

std::string Failures::Record(const Status& status) {
  std::string text = Text(status);
  std::lock_guard lock(mutex_);
  // All calls under way fail with the same error. One entry is enough.
  if (!recent_.empty() && Text(recent_.back()) == text) return text;
  recent_.push_back(status);
  if (recent_.size() > kRemembered) recent_.pop_front();
  return text;
}

std::optional<Status> Failures::Find(std::string_view text) const {
  std::lock_guard lock(mutex_);
  auto found =
      std::find_if(recent_.rbegin(), recent_.rend(), [&](const Status& status) {
        return text.find(Text(status)) != std::string_view::npos;
      });
  if (found == recent_.rend()) return std::nullopt;
  return *found;
}

}  // namespace jax_cxl::ffi
