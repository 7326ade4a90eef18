#include "cc/nccl/meeting.h"

#include <memory>
#include <utility>

#include "cc/nccl/bootstrap.h"
#include "cc/nccl/job.h"

namespace jax_cxl::nccl {

Status MeetAndOpen(Communicator* communicator, const Settings& settings,
                   const MakeReal& make_real) {
  const PoolToken& token = communicator->token();
  const int rank = communicator->rank(), size = communicator->size();
  const auto become = [&](auto* met, const std::string& why, bool problem) {
    const Gather gather = [met](std::span<const std::byte> block) {
      return met->AllGather(block);
    };
    const Result<void*> real = make_real(gather, why, problem);
    if (real.ok()) communicator->Become(*real);
    return real.status();
  };
  std::unique_ptr<Bootstrap> bootstrap;
  if (token.bootstrap.port != 0) {
    CXL_ASSIGN_OR_RETURN(bootstrap,
                         Bootstrap::Join(token, rank, size, settings.timeout_s,
                                         communicator->aborted()));
  }
  Result<std::unique_ptr<Job>> job =
      Job::Meet(token, rank, size, communicator->ordinal(), settings,
                communicator->aborted(), bootstrap.get());
  Status status = job.status();
  if (job.ok()) {
    if (settings.hosts != Hosts::kAll && (*job)->on_one_host())
      return become(job->get(),
                    "because its ranks are on one host (JAX_CXL_NCCL_HOSTS)",
                    /*problem=*/false);
    status = communicator->OpenIn(*std::move(job));
    if (bootstrap != nullptr) status = bootstrap->Agree(status);
  }
  if (bootstrap == nullptr || !bootstrap->agreed_to_fail()) return status;
  communicator->Close();
  return become(bootstrap.get(),
                "because it cannot use a pool: " + status.message(),
                /*problem=*/true);
}

}  // namespace jax_cxl::nccl
