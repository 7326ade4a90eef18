// Runs random collectives between threads as ranks, and checks them against
// plain loops. Usage: soak_benchmark [--count=N] [--seed=S] [--seconds=T].
// Writes JSON to the standard output. Exits with 1 if an element is wrong or a
// call fails.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "cc/testing/soak/soak.h"

namespace {

// Returns the value of `--name=value`, or null.
const char* Value(const char* argument, const char* name) {
  const size_t length = std::strlen(name);
  return std::strncmp(argument, name, length) == 0 ? argument + length
                                                   : nullptr;
}

template <typename Names>
void PrintCounts(const char* title, int size, const Names& name_and_count) {
  std::printf("  \"%s\": {", title);
  for (int i = 0; i < size; ++i) {
    const auto [name, count] = name_and_count(i);
    std::printf("%s\"%.*s\": %llu", i == 0 ? "" : ", ",
                static_cast<int>(name.size()), name.data(),
                static_cast<unsigned long long>(count));
  }
  std::printf("},\n");
}

}  // namespace

int main(int argc, char** argv) {
  using jax_cxl::comm::soak::Report;
  std::random_device device;
  uint64_t count = 0, seed = (uint64_t{device()} << 32) | device();
  double seconds = 0;
  for (int i = 1; i < argc; ++i) {
    if (const char* value = Value(argv[i], "--count=")) {
      count = std::strtoull(value, nullptr, 10);
    } else if (const char* value = Value(argv[i], "--seed=")) {
      seed = std::strtoull(value, nullptr, 10);
    } else if (const char* value = Value(argv[i], "--seconds=")) {
      seconds = std::strtod(value, nullptr);
    } else {
      std::fprintf(stderr, "usage: %s [--count=N] [--seed=S] [--seconds=T]\n",
                   argv[0]);
      return 2;
    }
  }
  if (count == 0 && seconds <= 0) seconds = 60;
  if (count == 0) count = std::numeric_limits<uint64_t>::max();
  std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
  const Report report = jax_cxl::comm::soak::Soak(count, seed, seconds);
  std::printf("{\n  \"seed\": %llu,\n  \"collectives\": %llu,\n",
              static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(report.calls));
  std::printf("  \"worlds\": %llu,\n",
              static_cast<unsigned long long>(report.worlds));
  PrintCounts("operations", jax_cxl::plan::kNumOps, [&](int i) {
    return std::pair(jax_cxl::plan::OpName(static_cast<jax_cxl::plan::Op>(i)),
                     report.by_op[i]);
  });
  PrintCounts("dtypes", jax_cxl::kNumDTypes, [&](int i) {
    return std::pair(jax_cxl::DTypeName(static_cast<jax_cxl::DType>(i)),
                     report.by_dtype[i]);
  });
  std::printf("  \"wrong_elements\": %llu,\n  \"seconds\": %.1f\n}\n",
              static_cast<unsigned long long>(report.wrong), report.seconds);
  if (report.first_failure.empty()) return 0;
  std::fprintf(stderr, "%s\n", report.first_failure.c_str());
  return 1;
}
