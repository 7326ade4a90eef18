#include "cc/nccl/job.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "cc/base/process_identity.h"
#include "cc/comm/health/regroup.h"
#include "cc/nccl/communicator_pool.h"

namespace jax_cxl::nccl {
namespace {

using comm::Clock;

// The channels of the hosts carry few and short messages.
constexpr uint64_t kSlotBytes = uint64_t{64} << 10;

constexpr auto kMeetingPoll = std::chrono::microseconds(200);
// How long a file may exist before its creator has made it a pool.
constexpr auto kFormatTime = std::chrono::seconds(10);
// How long rank 0 waits for a free place.
constexpr auto kBusyTime = std::chrono::seconds(10);
constexpr auto kBusyPoll = std::chrono::milliseconds(100);

Clock::time_point DeadlineOf(const Settings& settings) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(settings.timeout_s));
}

Status DidNotJoin(int rank, const Settings& settings) {
  return Error(Code::kDeadlineExceeded, "rank ", rank,
               " of the communicator did not join within ", settings.timeout_s,
               " s (JAX_CXL_TIMEOUT). ", MeetingAdvice(settings));
}

// Other communicators may end soon, and then leave their place.
Result<std::unique_ptr<pool::Pool>> CreateOnceFree(
    const PoolPlaces& places, const Settings& settings,
    const std::atomic<bool>& cancel) {
  const Clock::time_point deadline =
      std::min(DeadlineOf(settings), Clock::now() + kBusyTime);
  for (;;) {
    auto pool = places.Create();
    if (pool.status().code() != Code::kAlreadyExists) return pool;
    if (cancel) return AbortedWhileMeeting();
    if (Clock::now() > deadline) return pool;
    std::this_thread::sleep_for(kBusyPoll);
  }
}

Result<std::unique_ptr<pool::Pool>> AttachOnceThere(
    const PoolPlaces& places, const Settings& settings,
    const std::atomic<bool>& cancel) {
  const Clock::time_point deadline = DeadlineOf(settings);
  std::optional<Clock::time_point> found;
  for (;;) {
    auto pool = places.Attach();
    const Code code = pool.status().code();
    if (pool.ok() || code == Code::kPermissionDenied) return pool;
    if (cancel) return AbortedWhileMeeting();
    const Clock::time_point now = Clock::now();
    if (code != Code::kNotFound && !found) found = now;
    if (found && now - *found > kFormatTime) return pool.status();
    if (now > deadline)
      return Error(Code::kDeadlineExceeded,
                   DidNotJoin(/*rank=*/0, settings).message(), ": ",
                   pool.status().message());
    std::this_thread::sleep_for(kMeetingPoll);
  }
}

bool AreOnOneHost(const ProcessIdentity& one, const ProcessIdentity& other,
                  Hosts hosts) {
  switch (hosts) {
    case Hosts::kMachines:
      return std::strncmp(one.boot_id, other.boot_id, sizeof(one.boot_id)) == 0;
    case Hosts::kProcesses:
      return std::memcmp(&one, &other, sizeof(one)) == 0;
    case Hosts::kAll:
      return false;
  }
  std::abort();
}

}  // namespace

Result<std::unique_ptr<Job>> Job::Meet(const PoolToken& token, int rank,
                                       int size, int device,
                                       const Settings& settings,
                                       const std::atomic<bool>& cancel,
                                       Bootstrap* bootstrap) {
  std::unique_ptr<Job> job(new Job);
  job->rank_ = rank;
  job->size_ = size;
  const Status opened = job->OpenPool(token, settings, cancel, bootstrap);
  CXL_RETURN_IF_ERROR(bootstrap != nullptr && !bootstrap->agreed_to_fail()
                          ? bootstrap->Agree(opened)
                          : opened);
  comm::Register(job->pool_.get(), rank, rank, device);
  CXL_RETURN_IF_ERROR(job->AwaitRanks(settings, cancel));
  job->pool_->Unlink();
  comm::Options options;
  options.slot_bytes = kSlotBytes;
  options.tuning.inline_bytes = kMessageBytes;
  options.timeout_s = settings.timeout_s;
  options.warn_after_s = settings.warn_after_s;
  CXL_ASSIGN_OR_RETURN(job->peers_,
                       comm::Peers::Start(job->pool_.get(), {rank},
                                          options.heartbeat_timeout_s));
  job->endpoint_ = std::make_unique<comm::Endpoint>(
      job->pool_.get(), job->peers_.get(), &job->completions_, options, rank);
  std::vector<int32_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  CXL_ASSIGN_OR_RETURN(
      job->exchange_,
      comm::Exchange::Open(job->pool_.get(), job->peers_.get(),
                           job->endpoint_.get(), ranks, options));
  return job;
}

Status Job::OpenPool(const PoolToken& token, const Settings& settings,
                     const std::atomic<bool>& cancel, Bootstrap* bootstrap) {
  CXL_ASSIGN_OR_RETURN(const PoolPlaces places,
                       PoolPlaces::Of(token, size_, settings));
  Status created;
  if (rank_ == 0) {
    auto pool = CreateOnceFree(places, settings, cancel);
    created = pool.status();
    if (pool.ok()) pool_ = *std::move(pool);
  }
  // The others try to attach once the pool is there.
  CXL_RETURN_IF_ERROR(bootstrap != nullptr ? bootstrap->Agree(created)
                                           : created);
  if (rank_ != 0) {
    auto pool = bootstrap != nullptr
                    ? places.Attach()
                    : AttachOnceThere(places, settings, cancel);
    if (bootstrap != nullptr && pool.status().code() == Code::kNotFound)
      return Error(
          Code::kNotFound,
          "its /dev/shm is not the one of rank 0. It runs on another machine, "
          "or in another container (docker run --ipc=host shares the host's)");
    CXL_RETURN_IF_ERROR(pool.status());
    pool_ = *std::move(pool);
  }
  CXL_ASSIGN_OR_RETURN(rank_bytes_, RankBytes(*pool_, settings));
  return OkStatus();
}

Job::~Job() {
  if (endpoint_ != nullptr) endpoint_->Leave("", /*program_ends=*/false);
}

Status Job::AwaitRanks(const Settings& settings,
                       const std::atomic<bool>& cancel) {
  const Clock::time_point deadline = DeadlineOf(settings);
  std::optional<ProcessIdentity> first;
  on_one_host_ = true;
  for (int rank = 0; rank < size_; ++rank) {
    while (!comm::Registered(*pool_, rank)) {
      if (cancel) return AbortedWhileMeeting();
      if (Clock::now() > deadline) return DidNotJoin(rank, settings);
      std::this_thread::sleep_for(kMeetingPoll);
    }
    const ProcessIdentity process =
        pool_->coherence().AcquireCopy(pool_->rank_page(rank)->info).process;
    if (!first)
      first = process;
    else if (!AreOnOneHost(*first, process, settings.hosts))
      on_one_host_ = false;
  }
  return OkStatus();
}

Result<std::vector<std::byte>> Job::AllGather(
    std::span<const std::byte> block) {
  const auto chars = std::string_view(
      reinterpret_cast<const char*>(block.data()), block.size());
  CXL_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      exchange_->AllGather({.topic = "", .what = "agreement", .bytes = chars}));
  std::vector<std::byte> blocks;
  for (const std::string& each : all)
    std::ranges::transform(each, std::back_inserter(blocks),
                           [](char c) { return static_cast<std::byte>(c); });
  return blocks;
}

void Job::Abort(const Status& status) {
  exchange_->Abort(status);
  endpoint_->Abort(status);
}

}  // namespace jax_cxl::nccl
