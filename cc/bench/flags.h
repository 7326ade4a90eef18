#ifndef JAX_CXL_BENCH_FLAGS_H_
#define JAX_CXL_BENCH_FLAGS_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "cc/bench/team.h"

// The flags of engine_benchmark.cc.
namespace jax_cxl::comm {

// The usage text, a format for printf. Its arguments are the name of the
// program and the largest number of ranks.
inline constexpr char kUsage[] =
    "usage: %s [--ranks=2..%d] [--max_bytes=BYTES] [--repeats=7] "
    "[--min_bytes=8] [--backends=engine,endpoint] "
    "[--ops=all_reduce,...] [--json=FILE] "
    "[--coherence=coherent|uncached|flush]\n";

struct Flags {
  int ranks = 2;
  uint64_t min_bytes = 8;
  uint64_t max_bytes = uint64_t{64} << 20;
  std::string coherence = "coherent";
  int repeats = 7;
  std::string backends = "engine,endpoint";
  std::string ops =
      "barrier,all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,"
      "reduce,gather,scatter";
  std::string json;
};

// Returns true if `name` is one of the comma-separated names in `list`.
inline bool Names(std::string_view list, std::string_view name) {
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    if (list.substr(at, comma - at) == name) return true;
    at = comma + 1;
  }
  return false;
}

inline std::optional<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value =
        equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (name == "--ranks")
      flags.ranks = std::atoi(value.c_str());
    else if (name == "--min_bytes")
      flags.min_bytes = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "--max_bytes")
      flags.max_bytes = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "--coherence")
      flags.coherence = value;
    else if (name == "--repeats")
      flags.repeats = std::atoi(value.c_str());
    else if (name == "--backends")
      flags.backends = value;
    else if (name == "--ops")
      flags.ops = value;
    else if (name == "--json")
      flags.json = value;
    else
      return std::nullopt;
  }
  if (flags.ranks < 2 || flags.ranks > Meeting::kMaxRanks ||
      flags.repeats < 1 || flags.min_bytes == 0)
    return std::nullopt;
  return flags;
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_BENCH_FLAGS_H_
