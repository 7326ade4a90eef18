#include "cc/nccl/interface/settings.h"

#include <charconv>
#include <cstdlib>
#include <system_error>

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

Status ReadNumber(const char* name, const std::string& text, double least,
                  double most, double* number) {
  if (text.empty()) return OkStatus();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(value >= least && value <= most))
    return Error(Code::kInvalidArgument, name, " is '", text,
                 "'; write a number from ", least, " to ", most);
  *number = value;
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
  CXL_ASSIGN_OR_RETURN(const pool::PoolUri memory, ReadSharedMemory(uri));
  if (settings->hosts == Hosts::kMachines && !memory.coherence_given &&
      memory.spec.coherence == pool::CoherenceMode::kCoherent)
    return Error(Code::kInvalidArgument, "JAX_CXL_NCCL_POOL is '", uri,
                 "'. Between machines it has to say how they see each other's "
                 "stores: add ?coherence=flush, which is right on every "
                 "machine, or ?coherence=coherent if the hardware keeps their "
                 "caches coherent");
  settings->shared_memory = memory;
  return OkStatus();
}

}  // namespace

Settings ReadSettings(const std::function<std::string(const char*)>& variable) {
  constexpr double kMostRankBytes = 16e9, kMostCommunicatorBytes = 1e13;
  Settings settings;
  const std::string debug = variable("NCCL_DEBUG");
  settings.informs = debug == "INFO" || debug == "TRACE";
  settings.warns = settings.informs || debug == "WARN";
  settings.interfaces = variable("NCCL_SOCKET_IFNAME");
  settings.library = variable("JAX_CXL_NCCL_LIBRARY");
  auto rank_bytes = static_cast<double>(settings.rank_bytes);
  auto communicator_bytes = static_cast<double>(settings.communicator_bytes);
  settings.status = ReadHosts(variable("JAX_CXL_NCCL_HOSTS"), &settings.hosts);
  const auto read = [&](const char* name, double least, double most,
                        double* number) {
    const Status status = ReadNumber(name, variable(name), least, most, number);
    if (settings.status.ok()) settings.status = status;
  };
  read("JAX_CXL_NCCL_RANK_BYTES", kLeastRankBytes, kMostRankBytes, &rank_bytes);
  read("JAX_CXL_NCCL_COMMUNICATOR_BYTES", kLeastRankBytes,
       kMostCommunicatorBytes, &communicator_bytes);
  read("JAX_CXL_TIMEOUT", 0.001, 1e9, &settings.timeout_s);
  read("JAX_CXL_WARN_AFTER", 0.001, 1e9, &settings.warn_after_s);
  settings.rank_bytes = static_cast<uint64_t>(rank_bytes);
  settings.communicator_bytes = static_cast<uint64_t>(communicator_bytes);
  if (settings.status.ok())
    settings.status =
        ReadCompare(variable("JAX_CXL_NCCL_COMPARE"), &settings.compare);
  if (settings.status.ok())
    settings.status = ReadPool(variable("JAX_CXL_NCCL_POOL"), &settings);
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
