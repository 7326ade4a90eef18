#include "cc/nccl_library/opening.h"

#include <cuda_runtime_api.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/cuda/current_device.h"
#include "cc/nccl/compare/comparison.h"
#include "cc/nccl/cuda/cuda_device.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl_library/exported.h"
#include "cc/pool/layout/geometry.h"

namespace jax_cxl::nccl {
namespace {

std::atomic<bool> called = false;  // to make a communicator

// Says which library makes a communicator, once for all of its ranks.
void Inform(const Opening& opening, const std::string& where,
            bool problem = false) {
  if ((problem || TheSettings().informs) && opening.rank == 0)
    std::fprintf(stderr, "jax_cxl nccl: communicator %s of %d ranks goes %s\n",
                 PoolName(opening.token).c_str(), opening.size, where.c_str());
}

int FindCuda(dl_phdr_info* object, size_t, void* found) {
  const std::string_view name = object->dlpi_name;
  if (name.find("libcuda.so") != name.npos) *static_cast<bool*>(found) = true;
  return 0;
}

// Runs when the process exits, or when it unloads this library.
__attribute__((destructor)) void SayIfUnused() {
  if (called || !TheSettings().informs) return;
  bool has_cuda = false;
  dl_iterate_phdr(FindCuda, &has_cuda);
  if (has_cuda)
    std::fprintf(
        stderr,
        "jax_cxl nccl: process %d made no communicator through this library. "
        "If it does use NCCL, then NCCL is linked into the program, or the "
        "program opens it by another path: neither can be replaced\n",
        static_cast<int>(getpid()));
}

// Makes a communicator of the real library. `gather` is null if there is only
// one rank.
Result<void*> OpenReal(const Opening& opening, const Gather& gather) {
  struct Made {
    NcclResult result = kSuccess;
    NcclUniqueId id = {};
  } made;
  if (opening.rank == 0)
    made.result = JAX_CXL_NCCL_FORWARD("ncclGetUniqueId", &made.id);
  if (gather != nullptr) {
    CXL_ASSIGN_OR_RETURN(const std::vector<std::byte> all,
                         gather(std::as_bytes(std::span(&made, 1))));
    std::memcpy(&made, all.data(), sizeof(made));
  }
  CXL_RETURN_IF_ERROR(StatusOf(made.result, "ncclGetUniqueId"));
  // Openings of a group have threads.
  const cuda::CurrentDevice current(opening.ordinal);
  const Config config = ConfigForReal(opening.config);
  void* real = nullptr;
  const NcclResult result =
      config.get() == nullptr
          ? JAX_CXL_NCCL_FORWARD("ncclCommInitRank", &real, opening.size,
                                 made.id, opening.rank)
          : JAX_CXL_NCCL_FORWARD("ncclCommInitRankConfig", &real, opening.size,
                                 made.id, opening.rank, config.get());
  CXL_RETURN_IF_ERROR(StatusOf(result, "ncclCommInitRank"));
  return real;
}

// Makes a communicator of the real library that repeats every n-th call. It
// comes last, because only a Comparison ends it.
Status StartComparing(const Opening& opening, uint64_t every,
                      Communicator* communicator) {
  CXL_ASSIGN_OR_RETURN(std::unique_ptr<Comparer> comparer,
                       MakeCudaComparer(opening.ordinal));
  const auto gather = [job = communicator->job()](auto block) {
    return job->AllGather(block);
  };
  CXL_ASSIGN_OR_RETURN(void* const shadow, OpenReal(opening, gather));
  communicator->Compare(std::make_unique<Comparison>(
      [](const char* name) { return RealLibrary::Loaded().Find(name); }, shadow,
      std::move(comparer), opening.rank, opening.size, every));
  return OkStatus();
}

// Opens the communicator, and names the library that serves it.
Status OpenAndInform(const Opening& opening, Communicator* communicator) {
  CXL_RETURN_IF_ERROR(communicator->Open(
      TheSettings(),
      [&](const Gather& gather, const std::string& why, bool problem) {
        Inform(opening, "to NCCL, " + why, problem);
        return OpenReal(opening, gather);
      }));
  if (communicator->real() != nullptr) return OkStatus();
  Inform(opening, "through a pool, " +
                      pool::FormatBytes(communicator->job()->rank_bytes()) +
                      " a rank");
  const uint64_t every = TheSettings().compare;
  if (every == 0 || opening.size == 1) return OkStatus();
  const Status status = StartComparing(opening, every, communicator);
  if (!status.ok()) communicator->Fail(status);
  return status;
}

}  // namespace

Config ConfigForReal(const Config& config) {
  Config copy = config;
  if (!TheSettings().forwards_all()) copy.MakeBlocking();
  return copy;
}

Result<int> CurrentOrdinal() {
  int ordinal = 0;
  const cudaError_t error = cudaGetDevice(&ordinal);
  int count = 0;
  if (error == cudaSuccess && cudaGetDeviceCount(&count) == cudaSuccess &&
      count > 0)
    return ordinal;
  return Error(Code::kFailedPrecondition, "there is no GPU that CUDA can use: ",
               cudaGetErrorString(cudaGetLastError()),
               "; check nvidia-smi and CUDA_VISIBLE_DEVICES");
}

void Announce(int rank) {
  called = true;
  static std::atomic<bool> announced = false;
  const Settings& settings = TheSettings();
  const bool forwards = settings.forwards_all();
  if (rank != 0 || (forwards && !settings.informs) || announced.exchange(true))
    return;
  const std::string where =
      settings.shared_memory
          ? settings.shared_memory->spec.paths[0] + " (JAX_CXL_NCCL_POOL)"
          : "/dev/shm";
  const bool machines = settings.hosts == Hosts::kMachines;
  const std::string text =
      forwards
          ? "all collectives go to NCCL, because /dev/shm does not connect "
            "machines; JAX_CXL_NCCL_POOL names memory that does, and "
            "JAX_CXL_NCCL_HOSTS=all lets GPUs of this machine communicate "
            "through /dev/shm"
      : settings.hosts == Hosts::kAll
          ? "all collectives of NCCL go through pools in " + where +
                " (JAX_CXL_NCCL_HOSTS=all)"
          : std::string("collectives of NCCL between ") +
                (machines ? "machines" : "processes") +
                " go through pools in " + where + ", those in one " +
                (machines ? "machine" : "process") + " to NCCL" +
                (machines ? "" : " (JAX_CXL_NCCL_HOSTS=processes)");
  std::fprintf(stderr, "jax_cxl nccl: %s\n", text.c_str());
}

Status Open(const Opening& opening) {
  const Settings& settings = TheSettings();
  *opening.communicator = nullptr;
  if (opening.size == 1 && settings.hosts != Hosts::kAll) {
    Inform(opening, "to NCCL, because it has one rank");
    CXL_ASSIGN_OR_RETURN(*opening.communicator, OpenReal(opening, nullptr));
    return OkStatus();
  }
  auto communicator = std::make_unique<Communicator>(
      opening.token, opening.rank, opening.size, opening.ordinal,
      opening.config.blocking(),
      [ordinal = opening.ordinal, &settings](Job* met,
                                             const std::atomic<bool>& cancel) {
        return CudaDevice::Make(met, ordinal, settings, cancel);
      });
  Communicator* const raw = communicator.get();
  if (settings.hosts == Hosts::kAll && !raw->blocking()) {
    raw->OpenLater([raw, opening] { return OpenAndInform(opening, raw); });
  } else {
    CXL_RETURN_IF_ERROR(OpenAndInform(opening, raw));
    if (raw->real() != nullptr) {
      *opening.communicator = raw->real();
      return OkStatus();
    }
  }
  *opening.communicator = communicator.release();
  return OkStatus();
}

}  // namespace jax_cxl::nccl
