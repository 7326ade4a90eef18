#include "cc/nccl/job.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "cc/base/process_identity.h"
#include "cc/comm/health/regroup.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/open/shm_name.h"
#include "cc/pool/open/unique_fd.h"

namespace jax_cxl::nccl {
namespace {

using comm::Clock;

// The channels of the hosts carry few and short messages.
constexpr uint64_t kSlotBytes = uint64_t{64} << 10;

constexpr auto kMeetingPoll = std::chrono::microseconds(200);
// How long a file may exist before its creator has made it a pool.
constexpr auto kFormatTime = std::chrono::seconds(10);

Clock::time_point DeadlineOf(const Settings& settings) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(settings.timeout_s));
}

Status Canceled() {
  return Error(
      Code::kFailedPrecondition,
      "the communicator was aborted while its ranks met; make a new one");
}

// Returns the token in the header of the pool, or 0 if there is no header yet.
// The name of the pool is as secret as its token.
uint64_t FindToken(const pool::PoolSpec& spec) {
  pool::PoolHeader header = {};
  const std::string path = pool::ShmPath(spec.paths[0]);
  const pool::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() ||
      pread(fd.get(), &header, sizeof(header), 0) != sizeof(header))
    return 0;
  return header.token;
}

Result<std::unique_ptr<pool::Pool>> AttachOnceThere(
    const pool::PoolSpec& spec, int size, const Settings& settings,
    const std::atomic<bool>& cancel) {
  const Clock::time_point deadline = DeadlineOf(settings);
  std::optional<Clock::time_point> found;
  for (;;) {
    auto pool = pool::Pool::Attach(spec, size, FindToken(spec));
    const Code code = pool.status().code();
    if (pool.ok() || code == Code::kPermissionDenied) return pool;
    if (cancel) return Canceled();
    const Clock::time_point now = Clock::now();
    if (code != Code::kNotFound && !found) found = now;
    if (found && now - *found > kFormatTime) return pool.status();
    if (now > deadline)
      return Error(Code::kDeadlineExceeded,
                   "rank 0 of the communicator did not join within ",
                   settings.timeout_s,
                   " s (JAX_CXL_TIMEOUT). All ranks have to run on this "
                   "machine, with the same JAX_CXL_NCCL_HOSTS, and share "
                   "/dev/shm: ",
                   pool.status().message());
    std::this_thread::sleep_for(kMeetingPoll);
  }
}

}  // namespace

Result<std::unique_ptr<Job>> Job::Meet(const PoolToken& token, int rank,
                                       int size, int device,
                                       const Settings& settings,
                                       const std::atomic<bool>& cancel) {
  std::unique_ptr<Job> job(new Job);
  job->rank_ = rank;
  job->size_ = size;
  pool::PoolSpec spec;
  spec.paths = {PoolName(token)};
  spec.bytes = pool::AutomaticPathBytes(size, 1, 1, settings.rank_bytes);
  CXL_ASSIGN_OR_RETURN(
      job->pool_, rank == 0 ? pool::Pool::Create(spec, size)
                            : AttachOnceThere(spec, size, settings, cancel));
  comm::Register(job->pool_.get(), rank, rank, device);
  CXL_RETURN_IF_ERROR(job->AwaitRanks(settings, cancel));
  job->pool_->Unlink();
  comm::Options options;
  options.slot_bytes = kSlotBytes;
  options.timeout_s = settings.timeout_s;
  options.warn_after_s = settings.warn_after_s;
  CXL_ASSIGN_OR_RETURN(job->peers_,
                       comm::Peers::Start(job->pool_.get(), {rank},
                                          options.heartbeat_timeout_s));
  job->endpoint_ = std::make_unique<comm::Endpoint>(
      job->pool_.get(), job->peers_.get(), &job->completions_, options, rank);
  return job;
}

Job::~Job() {
  if (endpoint_ != nullptr) endpoint_->Leave("", /*program_ends=*/false);
}

Status Job::AwaitRanks(const Settings& settings,
                       const std::atomic<bool>& cancel) {
  const Clock::time_point deadline = DeadlineOf(settings);
  std::vector<ProcessIdentity> processes;
  for (int rank = 0; rank < size_; ++rank) {
    while (!comm::Registered(*pool_, rank)) {
      if (cancel) return Canceled();
      if (Clock::now() > deadline)
        return Error(Code::kDeadlineExceeded, "rank ", rank,
                     " of the communicator did not join within ",
                     settings.timeout_s,
                     " s (JAX_CXL_TIMEOUT). All ranks have to run on this "
                     "machine, with the same JAX_CXL_NCCL_HOSTS, and share "
                     "/dev/shm");
      std::this_thread::sleep_for(kMeetingPoll);
    }
    const pool::RankInfo info =
        pool_->coherence().AcquireCopy(pool_->rank_page(rank)->info);
    device_of_.push_back(info.device_id);
    const ProcessIdentity& process = info.process;
    const auto same =
        std::ranges::find_if(processes, [&](const ProcessIdentity& each) {
          return std::memcmp(&each, &process, sizeof(each)) == 0;
        });
    process_of_.push_back(static_cast<int>(same - processes.begin()));
    if (same == processes.end()) processes.push_back(process);
  }
  num_processes_ = static_cast<int>(processes.size());
  return OkStatus();
}

Result<std::vector<std::byte>> Job::AllGather(
    std::span<const std::byte> block) {
  std::vector<std::byte> blocks(block.size() * size_);
  std::vector<int32_t> members;
  for (int rank = 0; rank < size_; ++rank) members.push_back(rank);
  auto call = std::make_unique<comm::Call>();
  call->identity = ++gathers_;
  call->name = "agreement of the ranks";
  call->request.op = plan::Op::kAllGather;
  call->request.num_ranks = size_;
  call->request.rank = rank_;
  call->request.count = block.size();
  call->input = block.data();
  call->output = blocks.data();
  std::mutex mutex;
  std::condition_variable done;
  std::optional<Status> status;
  call->done = [&](const Status& result) {
    std::lock_guard lock(mutex);
    status = result;
    done.notify_all();
  };
  std::optional<Status> at_once =
      endpoint_->StartCall(members, std::move(call));
  if (!at_once) {
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return status.has_value(); });
    at_once = status;
  }
  CXL_RETURN_IF_ERROR(*at_once);
  return blocks;
}

}  // namespace jax_cxl::nccl
