#include "cc/base/process_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <optional>

#include "cc/base/process_stat.h"
#include "cc/base/text.h"

namespace jax_cxl {
namespace {

uint64_t PidNamespace() {
  struct stat info;
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  return text;
}

}  // namespace

ProcessIdentity ThisProcess() {
  ProcessIdentity process = {};
  process.pid = getpid();
  if (const auto self = ReadProcessStat(getpid()))
    process.process_start = self->start;
  process.pid_namespace = PidNamespace();
  std::snprintf(process.boot_id, sizeof(process.boot_id), "%s",
                BootId().c_str());
  if (gethostname(process.host, sizeof(process.host) - 1) != 0)
    std::snprintf(process.host, sizeof(process.host), "unknown");
  return process;
}

bool OnThisKernel(const ProcessIdentity& process) {
  const std::string boot_id = BootId();
  return !boot_id.empty() && PrintableText(process.boot_id) == boot_id;
}

bool PidMeansTheSame(const ProcessIdentity& process) {
  return OnThisKernel(process) && process.pid_namespace == PidNamespace();
}

bool HasEnded(const ProcessIdentity& process) {
  const std::optional<ProcessStat> found = ReadProcessStat(process.pid);
  return !found || found->start != process.process_start ||
         found->state == 'Z' || found->state == 'X';
}

bool IsEnding(const ProcessIdentity& process) {
  const std::optional<ProcessStat> found = ReadProcessStat(process.pid);
  return found && (found->start != process.process_start || found->ending());
}

std::string DescribeProcess(const ProcessIdentity& process) {
  const std::string name = PidMeansTheSame(process)
                               ? DescribeProcess(static_cast<int>(process.pid))
                               : "process " + std::to_string(process.pid);
  return name + " on host " + PrintableText(process.host);
}

std::string DescribeProcess(int pid) {
  if (pid <= 0) return "another process";
  std::string text = "process " + std::to_string(pid);
  std::ifstream comm("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  if (std::getline(comm, name) && !name.empty())
    text += " (" + PrintableText(name) + ")";
  return text;
}

}  // namespace jax_cxl
