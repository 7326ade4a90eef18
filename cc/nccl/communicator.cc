#include "cc/nccl/communicator.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

#include "cc/nccl/bootstrap.h"
#include "cc/nccl/interface/results.h"

namespace jax_cxl::nccl {
namespace {

constexpr auto kWatchInterval = std::chrono::milliseconds(10);
// How long a comparison may go on without a rank. That rank may have ended its
// part, and then the program.
constexpr auto kLastSteps = std::chrono::seconds(1);

// The communicators whose calls threads watch. When the process exits, CUDA
// frees memory that these threads read, even if the program has not destroyed
// its communicators. This object itself is never destroyed.
struct Watched {
  std::mutex mutex;
  std::set<Communicator*> communicators;
};

Watched& TheWatched() {
  static auto& watched = *new Watched;
  return watched;
}

void StopWatchingAll() {
  Watched& watched = TheWatched();
  std::lock_guard lock(watched.mutex);
  for (Communicator* communicator : watched.communicators) {
    communicator->StopWatching();
    communicator->SayCompared(/*so_far=*/true);
    communicator->device()->EndThreads();
  }
}

}  // namespace

Communicator::Communicator(const PoolToken& token, int rank, int size,
                           int ordinal, bool blocking, MakeDevice make_device)
    : token_(token),
      rank_(rank),
      size_(size),
      ordinal_(ordinal),
      blocking_(blocking),
      make_device_(std::move(make_device)) {}

Communicator::~Communicator() {
  if (opening_) aborted_ = true;
  if (opener_.joinable()) opener_.join();
  Close();
}

void Communicator::Close() {
  {
    Watched& watched = TheWatched();
    std::lock_guard lock(watched.mutex);
    watched.communicators.erase(this);
    StopWatching();
  }
  // After Abort, a thread that waits for other ranks soon gives up the mutex.
  std::lock_guard lock(mutex_);
  if (comparison_ != nullptr && status().ok()) {
    static_cast<void>(comparison_->Drain());
    SayCompared(/*so_far=*/false);
  }
  comparison_.reset();
  device_.reset();
  job_.reset();
}

Status Communicator::OpenIn(std::unique_ptr<Job> job) {
  job_ = std::move(job);
  Result<std::unique_ptr<Device>> made = make_device_(job_.get(), aborted_);
  if (made.ok()) {
    device_ = *std::move(made);
    StartWatching();
  } else {
    job_->peers()->GiveUp(rank_, made.status());
  }
  SetStatus(made.status());
  return made.status();
}

Status Communicator::Open(const Settings& settings, const MakeReal& make_real) {
  const auto become = [&](auto* met, const std::string& why, bool problem) {
    const Gather gather = [met](std::span<const std::byte> block) {
      return met->AllGather(block);
    };
    const Result<void*> real = make_real(gather, why, problem);
    if (real.ok()) real_ = *real;
    return real.status();
  };
  std::unique_ptr<Bootstrap> bootstrap;
  if (token_.bootstrap.port != 0) {
    CXL_ASSIGN_OR_RETURN(
        bootstrap,
        Bootstrap::Join(token_, rank_, size_, settings.timeout_s, aborted_));
  }
  Result<std::unique_ptr<Job>> job = Job::Meet(
      token_, rank_, size_, ordinal_, settings, aborted_, bootstrap.get());
  Status status = job.status();
  if (job.ok()) {
    if (settings.hosts != Hosts::kAll && (*job)->on_one_host())
      return become(job->get(),
                    "because its ranks are on one host (JAX_CXL_NCCL_HOSTS)",
                    /*problem=*/false);
    status = OpenIn(*std::move(job));
    if (bootstrap != nullptr) status = bootstrap->Agree(status);
  }
  if (bootstrap == nullptr || !bootstrap->agreed_to_fail()) return status;
  Close();
  return become(bootstrap.get(),
                "because it cannot use a pool: " + status.message(),
                /*problem=*/true);
}

void Communicator::OpenLater(std::function<Status()> open) {
  opening_ = true;
  opener_ = std::thread([this, open = std::move(open)] {
    const Status status = open();
    SetStatus(status);
    if (!status.ok()) NoteError(status);
    opening_ = false;
  });
}

Status Communicator::status() const {
  std::lock_guard lock(status_mutex_);
  return status_;
}

Status Communicator::CheckReady(std::string_view function) const {
  if (opening_)
    return Error(Code::kInvalidArgument, function,
                 ": the communicator is not ready yet; call "
                 "ncclCommGetAsyncError until it no longer returns "
                 "ncclInProgress");
  return status();
}

void Communicator::SetStatus(const Status& status) {
  std::lock_guard lock(status_mutex_);
  if (status_.ok()) status_ = status;
}

void Communicator::StartWatching() {
  Watched& watched = TheWatched();
  std::lock_guard lock(watched.mutex);
  // Registered after CUDA's own exit function, so that it runs before that one.
  static const int registered = std::atexit(StopWatchingAll);
  static_cast<void>(registered);
  watched.communicators.insert(this);
  watcher_ = std::thread([this] { Watch(); });
}

void Communicator::StopWatching() {
  {
    std::lock_guard lock(status_mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

Status Communicator::FindLost() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    CXL_RETURN_IF_ERROR(job_->peers()->GaveUp(rank));
    CXL_RETURN_IF_ERROR(job_->peers()->Alive(rank));
  }
  return OkStatus();
}

void Communicator::Watch() {
  // When a comparison was first without a rank.
  std::optional<comm::Clock::time_point> lost_since;
  for (;;) {
    const Comparison* comparison = nullptr;
    {
      std::unique_lock lock(status_mutex_);
      if (stopped_.wait_for(lock, kWatchInterval, [this] { return stop_; }))
        return;
      if (!status_.ok()) continue;
      comparison = comparison_.get();
    }
    const comm::Clock::time_point now = job_->peers()->AwakeTime();
    Status status = device_->Check(now);
    if (status.ok() && comparison != nullptr) status = comparison->Check();
    // NVIDIA's library does not notice that a rank is lost.
    const Status lost = comparison != nullptr && comparison->under_way()
                            ? FindLost()
                            : OkStatus();
    if (lost.ok())
      lost_since.reset();
    else if (!lost_since)
      lost_since = now;
    else if (status.ok() && now - *lost_since > kLastSteps)
      status = lost;
    if (!status.ok()) Fail(status);
  }
}

void Communicator::Compare(std::unique_ptr<Comparison> comparison) {
  std::lock_guard lock(status_mutex_);
  comparison_ = std::move(comparison);
}

void Communicator::SayCompared(bool so_far) {
  if (comparison_ == nullptr || !status().ok()) return;
  const Status status = comparison_->Check();
  const auto compared =
      static_cast<unsigned long long>(comparison_->compared());
  if (!status.ok()) {
    Fail(status);
  } else if (rank_ == 0 && compared > 0) {
    std::fprintf(stderr,
                 "jax_cxl nccl: communicator %s: %llu calls compared with "
                 "NVIDIA's library on rank 0, no difference%s\n",
                 PoolName(token_).c_str(), compared, so_far ? " so far" : "");
  }
}

PoolToken Communicator::NextToken(const std::vector<int>& ranks) {
  std::lock_guard lock(mutex_);
  return DeriveToken(token_, ranks, children_[ranks]++);
}

void Communicator::Fail(const Status& status) {
  {
    std::lock_guard lock(status_mutex_);
    if (!status_.ok()) return;
    status_ = status;
    NoteError(status);
  }
  std::fprintf(stderr, "jax_cxl nccl: error on rank %d: %s\n", rank_,
               status.message().c_str());
  job_->peers()->GiveUp(rank_, status);
}

Status Communicator::Finalize() {
  if (opener_.joinable()) opener_.join();
  CXL_RETURN_IF_ERROR(status());
  std::lock_guard lock(mutex_);
  CXL_RETURN_IF_ERROR(device_->Drain());
  if (comparison_ == nullptr) return OkStatus();
  const Status compared = comparison_->Drain();
  if (!compared.ok()) Fail(compared);
  return compared;
}

void Communicator::Abort() {
  aborted_ = true;
  if (opener_.joinable()) opener_.join();
  if (device_ == nullptr) return;
  SayCompared(/*so_far=*/true);
  const Status status =
      Error(Code::kPeerLost, "rank ", rank_,
            " has aborted the communicator; look at the output of that rank");
  SetStatus(status);
  job_->Abort(status);
  device_->Abort();
  // After the device, whose calls come before NVIDIA's in their streams.
  if (comparison_ != nullptr) comparison_->Abort();
}

}  // namespace jax_cxl::nccl
