#include "cc/nccl/interface/pool_setting.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

namespace jax_cxl::nccl {
namespace {

using Options = std::map<std::string, std::string, std::less<>>;

Status Wrong(const std::string& uri, const std::string& problem) {
  return Error(Code::kInvalidArgument, "JAX_CXL_NCCL_POOL is '", uri,
               "': ", problem,
               "; write for example dax:/dev/dax0.0?size=64GiB");
}

// Returns the bytes of a size such as 512, 4KiB or 64 MiB.
std::optional<uint64_t> ReadSize(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(end - text.data());
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  const auto* const unit = std::ranges::find(kUnits, text);
  if (unit == std::end(kUnits) && !text.empty()) return std::nullopt;
  const auto shift = text.empty() ? 0 : 10 * (unit - kUnits);
  constexpr uint64_t kMost = uint64_t{1} << 62;
  if (number >= kMost >> shift) return std::nullopt;
  return number << shift;
}

Result<Options> ReadOptions(const std::string& uri, std::string_view query) {
  constexpr std::string_view kKnown[] = {"size", "offset", "coherence",
                                         "gpu_writes", "devices"};
  Options options;
  for (;;) {
    const size_t end = query.find('&');
    const std::string_view option = query.substr(0, end);
    const size_t equals = option.find('=');
    const std::string key(option.substr(0, equals));
    if (equals == option.npos || equals + 1 == option.size())
      return Wrong(uri, "option '" + key + "' has no value");
    if (std::ranges::find(kKnown, key) == std::end(kKnown))
      return Wrong(uri, "'" + key + "' is not an option");
    if (!options.emplace(key, option.substr(equals + 1)).second)
      return Wrong(uri, "option '" + key + "' is given twice");
    if (end == query.npos) return options;
    query.remove_prefix(end + 1);
  }
}

Result<uint64_t> SizeOf(const std::string& uri, const Options& options,
                        const char* key) {
  const auto found = options.find(key);
  if (found == options.end()) return uint64_t{0};
  if (const auto size = ReadSize(found->second)) return *size;
  return Wrong(uri, std::string(key) + "=" + found->second +
                        " is not a size such as 512, 4KiB or 64MiB");
}

}  // namespace

Result<SharedMemory> ReadSharedMemory(const std::string& uri) {
  const size_t colon = uri.find(':');
  const std::string kind = uri.substr(0, colon);
  if (colon == uri.npos || (kind != "dax" && kind != "file"))
    return Error(Code::kUnimplemented, "JAX_CXL_NCCL_POOL is '", uri,
                 "'; name memory of several machines, such as dax:/dev/dax0.0. "
                 "Without JAX_CXL_NCCL_POOL, pools lie in /dev/shm");
  const size_t question = uri.find('?');
  const std::string path = uri.substr(
      colon + 1, question == uri.npos ? uri.npos : question - colon - 1);
  if (!path.starts_with('/'))
    return Wrong(uri, "path '" + path + "' does not start with '/'");
  Options options;
  if (question != uri.npos) {
    CXL_ASSIGN_OR_RETURN(options, ReadOptions(uri, uri.substr(question + 1)));
  }
  if (path.find(',') != path.npos || options.contains("devices"))
    return Error(Code::kUnimplemented, "JAX_CXL_NCCL_POOL is '", uri,
                 "'; collectives of NCCL use one device: name one path, and "
                 "leave devices= out");
  SharedMemory memory;
  CXL_ASSIGN_OR_RETURN(memory.spec.medium, pool::Medium::Find(kind));
  memory.spec.paths = {path};
  CXL_ASSIGN_OR_RETURN(memory.spec.bytes, SizeOf(uri, options, "size"));
  CXL_ASSIGN_OR_RETURN(memory.spec.offset, SizeOf(uri, options, "offset"));
  if (kind == "file" &&
      (options.contains("size") || options.contains("offset")))
    return Wrong(uri,
                 "each communicator has a file of its own, whose size follows "
                 "from JAX_CXL_NCCL_RANK_BYTES: leave size= and offset= out");
  const auto coherence = options.find("coherence");
  memory.coherence_given = coherence != options.end();
  const std::string mode = memory.coherence_given ? coherence->second
                           : kind == "dax"        ? "flush"
                                                  : "coherent";
  const auto parsed = pool::ParseCoherenceMode(mode);
  if (!parsed.ok())
    return Wrong(uri,
                 "coherence=" + mode + " is not coherent, uncached or flush");
  memory.spec.coherence = *parsed;
  const auto gpu_writes = options.find("gpu_writes");
  memory.gpu_writes_memory = gpu_writes != options.end();
  if (memory.gpu_writes_memory && gpu_writes->second != "memory")
    return Wrong(uri, "gpu_writes=" + gpu_writes->second + " is not memory");
  if (memory.gpu_writes_memory && mode != "flush")
    return Wrong(uri,
                 "gpu_writes=memory means that no write-back is needed, and "
                 "with coherence=" +
                     mode + " there is none: leave it out");
  return memory;
}

}  // namespace jax_cxl::nccl
