#include "cc/comm/health/peers.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>

#include "cc/base/idle.h"
#include "cc/base/process_identity.h"
#include "cc/base/process_stat.h"
#include "cc/base/text.h"
#include "cc/comm/record/recorded_calls.h"
#include "cc/comm/record/recorder.h"

namespace jax_cxl::comm {
namespace {

constexpr int kBeatMilliseconds = 100;
// A heartbeat is late after this time. The time between two heartbeats of a
// living process is rarely longer.
constexpr double kLateBeatS = 1.5e-3 * kBeatMilliseconds;

// A status with a detail of this name is an error that this rank received from
// another rank.
constexpr char kToldBy[] = "told_by";

// Returns the details as lines "name=value". Leaves out details that do not fit
// into RankAbort::details.
std::string Lines(const Details& details) {
  std::string lines;
  for (const auto& [name, value] : details) {
    if (lines.size() + name.size() + value.size() + 2 >=
        sizeof(pool::RankAbort::details))
      break;
    lines += name + "=" + value + "\n";
  }
  return lines;
}

Details Parse(const std::string& lines) {
  Details details;
  std::istringstream text(lines);
  for (std::string line; std::getline(text, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos)
      details.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  return details;
}

}  // namespace

void Register(pool::Pool* pool, int rank, int process_index, int device_id) {
  pool::RankInfo& info = pool->rank_page(rank)->info;
  info.process = ThisProcess();
  info.process_index = process_index;
  info.device_id = device_id;
  pool->coherence().PublishPayload(&info, sizeof(info));
  pool->doorbells().Ring(&info.ready, 1);
}

Peers::Peers(pool::Pool* pool, double heartbeat_timeout_s)
    : pool_(pool),
      doorbells_(pool->doorbells()),
      heartbeat_timeout_s_(heartbeat_timeout_s) {}

Result<std::unique_ptr<Peers>> Peers::Start(pool::Pool* pool,
                                            const std::vector<int>& local,
                                            double heartbeat_timeout_s,
                                            const std::vector<int>& absent) {
  std::unique_ptr<Peers> peers(new Peers(pool, heartbeat_timeout_s));
  CXL_RETURN_IF_ERROR(peers->Identify(local, absent));
  peers->wake_fd_ = pool::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  peers->Beat();
  peers->watcher_ = std::jthread([raw = peers.get()] { raw->Watch(); });
  return peers;
}

Status Peers::Identify(const std::vector<int>& local,
                       const std::vector<int>& absent) {
  local_ = local;
  for (int rank = 0; rank < pool_->world_size(); ++rank) {
    Peer& peer = *peers_.emplace_back(std::make_unique<Peer>());
    peer.name = "rank " + std::to_string(rank);
    if (std::ranges::find(absent, rank) != absent.end()) {
      peer.absent = true;
      peer.lost = true;
      continue;
    }
    const pool::RankInfo& info = pool_->rank_page(rank)->info;
    if (doorbells_.Read(&info.ready) == 0)
      return Error(
          Code::kDataLoss, peer.name,
          " did not register in the pool; every process of the job has to call "
          "jax_cxl.initialize() with the same pool");
    peer.process = pool_->coherence().AcquireCopy(info).process;
    peer.host = PrintableText(peer.process.host);
    peer.name += " (pid " + std::to_string(peer.process.pid) + " on host " +
                 peer.host + ")";
    peer.ours = std::ranges::find(local, rank) != local.end();
    peer.last_change_s = AwakeSeconds();
    peer.pid_known = PidMeansTheSame(peer.process);
    if (peer.ours || !peer.pid_known) continue;
    peer.pidfd = pool::UniqueFd(
        static_cast<int>(syscall(SYS_pidfd_open, peer.process.pid, 0)));
    // The peer's process has ended if no process has its pid, or if a later
    // process has it.
    if ((!peer.pidfd.valid() && errno == ESRCH) || HasEnded(peer.process))
      peer.lost = peer.ended = true;
  }
  return OkStatus();
}

Peers::~Peers() {
  stop_ = true;
  // Wake the watcher now. Otherwise it waits until the next heartbeat.
  eventfd_write(wake_fd_.get(), 1);
}

void Peers::Watch() {
  const OwnThread own;
  std::vector<pollfd> watched = {{wake_fd_.get(), POLLIN, 0}};
  std::vector<Peer*> owners = {nullptr};
  for (auto& peer : peers_) {
    if (!peer->pidfd.valid()) continue;
    watched.push_back({peer->pidfd.get(), POLLIN, 0});
    owners.push_back(peer.get());
  }
  while (!stop_) {
    if (poll(watched.data(), watched.size(), kBeatMilliseconds) > 0) {
      for (size_t i = 1; i < watched.size(); ++i) {
        if (watched[i].revents == 0) continue;
        owners[i]->lost = true;
        owners[i]->ended = true;
        watched[i].fd = -1;  // poll skips it from now on
      }
    }
    // Check this first: if another job has formatted the pool, do not write to
    // it.
    if (!pool_->CheckIntact().ok()) continue;
    Beat();
    LookForDead();
  }
}

void Peers::Beat() {
  for (int rank : local_) {
    uint64_t* word = &pool_->rank_page(rank)->heartbeat.word;
    doorbells_.Ring(word, doorbells_.Read(word) + 1);
    Recorder::Beat(pool_, rank);
  }
}

void Peers::LookForDead() {
  const double now = AwakeSeconds();
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = *peers_[rank];
    if (peer.ours || peer.lost) continue;
    const uint64_t beat =
        doorbells_.Read(&pool_->rank_page(rank)->heartbeat.word);
    if (beat != peer.last_beat) {
      peer.last_beat = beat;
      peer.last_change_s = now;
      continue;
    }
    const double silence = now - peer.last_change_s;
    if (!peer.pidfd.valid() && silence > heartbeat_timeout_s_) peer.lost = true;
    if (peer.pid_known && silence > kLateBeatS && IsEnding(peer.process))
      peer.lost = true;
  }
}

double Peers::AwakeSeconds() const {
  return std::chrono::duration<double>(AwakeTime().time_since_epoch()).count();
}

double Peers::Silence(int rank) const {
  const Peer& peer = *peers_[rank];
  const double silence = peer.ours ? 0 : AwakeSeconds() - peer.last_change_s;
  return silence > 3e-3 * kBeatMilliseconds ? silence : 0;
}

Status Peers::Alive(int rank) const {
  const Peer& peer = *peers_[rank];
  // If another job has formatted the pool, the pool no longer shows which
  // processes of this job live.
  if (!pool_->guard().intact()) return pool_->CheckIntact();
  if (!peer.lost) return OkStatus();
  if (peer.absent)
    return Error(Code::kPeerLost, peer.name,
                 " is no longer part of the job, because jax_cxl.regroup() "
                 "left it out; use only the devices that regroup returned")
        .With("rank", rank);
  std::string how;
  if (peer.pidfd.valid())
    how = DescribeExit(peer.pidfd.get(), peer.process.pid);
  if (!how.empty()) how = " " + how;
  return Error(Code::kPeerLost, peer.name,
               peer.pid_known ? " is gone: its process ended" + how
                              : " is gone: its heartbeat stopped",
               "; ", DescribeLastCall(*pool_->recorder(rank), doorbells_))
      .With(Identity(rank));
}

Status Peers::GaveUp(int rank) const {
  const pool::RankAbort& entry = pool_->rank_page(rank)->abort;
  if (doorbells_.Read(&entry.raised) == 0) return OkStatus();
  const pool::RankAbort abort = pool_->coherence().AcquireCopy(entry);
  const Code code = ErrorCode(abort.code);
  const std::string reason = PrintableText(abort.reason);
  const Details details = Parse(PrintableText(abort.details));
  const bool passed_on = std::ranges::any_of(
      details, [](const auto& detail) { return detail.first == kToldBy; });
  Status status = passed_on
                      ? Status(code, reason)
                      : Error(code, peers_[rank]->name, " gave up: ", reason);
  return std::move(status).With(details).With(kToldBy, rank);
}

void Peers::GiveUp(int rank, const Status& reason) {
  std::lock_guard lock(give_up_mutex_);
  pool::RankAbort& abort = pool_->rank_page(rank)->abort;
  if (doorbells_.Read(&abort.raised) != 0) return;
  abort.code = static_cast<uint32_t>(reason.code());
  std::snprintf(abort.reason, sizeof(abort.reason), "%s",
                reason.message().c_str());
  std::snprintf(abort.details, sizeof(abort.details), "%s",
                Lines(reason.details()).c_str());
  pool_->coherence().PublishPayload(&abort, sizeof(abort));
  doorbells_.Ring(&abort.raised, 1);
}

void Peers::NoteFailedProgram(int rank, const std::string& reason) {
  std::lock_guard lock(give_up_mutex_);
  pool::RankFailures& failures = pool_->rank_page(rank)->failures;
  std::snprintf(failures.reason, sizeof(failures.reason), "%s", reason.c_str());
  pool_->coherence().PublishPayload(&failures, sizeof(failures));
  doorbells_.Ring(&failures.count, doorbells_.Read(&failures.count) + 1);
}

Status Peers::FailedMoreThan(int rank, int self) const {
  const pool::RankFailures& entry = pool_->rank_page(rank)->failures;
  if (doorbells_.Read(&entry.count) <=
      doorbells_.Read(&pool_->rank_page(self)->failures.count))
    return OkStatus();
  const pool::RankFailures failures = pool_->coherence().AcquireCopy(entry);
  return Error(Code::kPeerLost, "a program failed on ", peers_[rank]->name,
               ", but not on rank ", self, ": ", PrintableText(failures.reason))
      .With(Identity(rank));
}

void Peers::Leave(int rank, uint64_t started, const std::string& reason,
                  bool program_ends) {
  pool::RankEnd& end = pool_->rank_page(rank)->end;
  end.started = started;
  end.program_goes_on = !program_ends;
  std::snprintf(end.reason, sizeof(end.reason), "%s", reason.c_str());
  pool_->coherence().PublishPayload(&end, sizeof(end));
  doorbells_.Ring(&end.raised, 1);
}

Status Peers::Left(int rank) const {
  const pool::RankEnd& entry = pool_->rank_page(rank)->end;
  if (doorbells_.Read(&entry.raised) == 0) return OkStatus();
  const pool::RankEnd end = pool_->coherence().AcquireCopy(entry);
  const std::string reason = PrintableText(end.reason);
  if (!reason.empty())
    return Error(Code::kPeerLost, peers_[rank]->name, " ended with ", reason)
        .With(Identity(rank));
  const bool goes_on = end.program_goes_on != 0;
  return Error(Code::kMismatch, peers_[rank]->name,
               goes_on ? " called jax_cxl.shutdown() after "
                       : " ended normally, after ",
               end.started, " collectives", goes_on ? " and has not ended" : "")
      .With("rank_1", rank)
      .With("call_1", std::string("none: it ") +
                          (goes_on ? "shut jax_cxl down" : "ended") +
                          " after " + std::to_string(end.started) +
                          " collectives");
}

Details Peers::Identity(int rank) const {
  const Peer& peer = *peers_[rank];
  return {{"rank", std::to_string(rank)},
          {"pid", std::to_string(peer.process.pid)},
          {"host", peer.host}};
}

std::string Peers::Name(int rank) const { return peers_[rank]->name; }

}  // namespace jax_cxl::comm
