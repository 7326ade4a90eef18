#include "cc/nccl/interface/settings.h"

#include <charconv>
#include <cstdlib>
#include <system_error>

#include "cc/pool/media/medium.h"

namespace jax_cxl::nccl {
namespace {

Status ReadHosts(const std::string& text, Hosts* hosts) {
  if (text.empty() || text == "machines")
    *hosts = Hosts::kMachines;
  else if (text == "processes")
    *hosts = Hosts::kProcesses;
  else if (text == "all")
    *hosts = Hosts::kAll;
  else
    return Error(Code::kInvalidArgument, "JAX_CXL_NCCL_HOSTS is '", text,
                 "'; write machines, processes or all");
  return OkStatus();
}

template <typename Number>
Status ReadNumber(const char* name, const std::string& text, double least,
                  double most, Number* number) {
  if (text.empty()) return OkStatus();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(value >= least && value <= most))
    return Error(Code::kInvalidArgument, name, " is '", text,
                 "'; write a number from ", least, " to ", most);
  *number = static_cast<Number>(value);
  return OkStatus();
}

Status ReadCompare(const std::string& text, uint64_t* every) {
  if (text.empty()) return OkStatus();
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *every);
  if (rest == end && error == std::errc() && *every > 0) return OkStatus();
  return Error(
      Code::kInvalidArgument, "JAX_CXL_NCCL_COMPARE is '", text,
      "'; write a whole number from 1: with 100, every 100th call of a "
      "communicator is compared with NVIDIA's library");
}

Status ReadPool(const std::string& uri, Settings* settings) {
  if (uri.empty()) return OkStatus();
  const auto wrong = [&](Code code, const char* problem) {
    return Error(code, "JAX_CXL_NCCL_POOL is '", uri, "'", problem);
  };
  const Result<pool::PoolUri> memory = pool::ParsePoolUri(uri);
  if (!memory.ok())
    return Error(memory.status().code(),
                 "JAX_CXL_NCCL_POOL: ", memory.status().message());
  const pool::PoolSpec& spec = memory->spec;
  if (spec.medium == pool::Medium::kShm)
    return wrong(Code::kUnimplemented,
                 "; name memory that several machines can map, by dax: or "
                 "file:, such as dax:/dev/dax0.0. Without JAX_CXL_NCCL_POOL, "
                 "pools lie in /dev/shm");
  if (spec.paths.size() > 1 || spec.devices_per_path > 1)
    return wrong(Code::kUnimplemented,
                 "; collectives of NCCL use one device: name one path, and "
                 "leave devices= out");
  if (spec.medium == pool::Medium::kFile && (spec.bytes > 0 || spec.offset > 0))
    return wrong(Code::kInvalidArgument,
                 "; each communicator has a file of its own, whose size "
                 "follows from JAX_CXL_NCCL_RANK_BYTES: leave size= and "
                 "offset= out");
  if (settings->hosts == Hosts::kMachines && !memory->coherence_given &&
      spec.coherence == pool::CoherenceMode::kCoherent)
    return wrong(Code::kInvalidArgument,
                 ". Between machines it has to say how they see each other's "
                 "stores: add ?coherence=flush, which is right on every "
                 "machine, or ?coherence=coherent if the hardware keeps their "
                 "caches coherent");
  settings->shared_memory = *memory;
  return OkStatus();
}

Status ReadAll(const std::function<std::string(const char*)>& variable,
               Settings* settings) {
  constexpr double kMostRankBytes = 16e9, kMostCommunicatorBytes = 1e13;
  CXL_RETURN_IF_ERROR(
      ReadHosts(variable("JAX_CXL_NCCL_HOSTS"), &settings->hosts));
  const auto read = [&](const char* name, double least, double most,
                        auto* number) {
    return ReadNumber(name, variable(name), least, most, number);
  };
  CXL_RETURN_IF_ERROR(read("JAX_CXL_NCCL_RANK_BYTES", kLeastRankBytes,
                           kMostRankBytes, &settings->rank_bytes));
  CXL_RETURN_IF_ERROR(read("JAX_CXL_NCCL_COMMUNICATOR_BYTES", kLeastRankBytes,
                           kMostCommunicatorBytes,
                           &settings->communicator_bytes));
  CXL_RETURN_IF_ERROR(
      read("JAX_CXL_TIMEOUT", 0.001, 1e9, &settings->timeout_s));
  CXL_RETURN_IF_ERROR(
      read("JAX_CXL_WARN_AFTER", 0.001, 1e9, &settings->warn_after_s));
  CXL_RETURN_IF_ERROR(
      ReadCompare(variable("JAX_CXL_NCCL_COMPARE"), &settings->compare));
  return ReadPool(variable("JAX_CXL_NCCL_POOL"), settings);
}

}  // namespace

Settings ReadSettings(const std::function<std::string(const char*)>& variable) {
  Settings settings;
  const std::string debug = variable("NCCL_DEBUG");
  settings.informs = debug == "INFO" || debug == "TRACE";
  settings.warns = settings.informs || debug == "WARN";
  settings.interfaces = variable("NCCL_SOCKET_IFNAME");
  settings.library = variable("JAX_CXL_NCCL_LIBRARY");
  settings.status = ReadAll(variable, &settings);
  return settings;
}

const Settings& TheSettings() {
  static const Settings& settings =
      *new Settings(ReadSettings([](const char* name) -> std::string {
        const char* value = std::getenv(name);
        return value == nullptr ? "" : value;
      }));
  return settings;
}

}  // namespace jax_cxl::nccl
