#include "cc/comm/order/channel.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cc/base/ticks.h"

namespace jax_cxl::comm {

Channel::Channel(pool::Pool* pool, Peers* peers, Recorder* recorder,
                 const Options& options, Group group)
    : pool_(pool),
      peers_(peers),
      recorder_(recorder),
      connection_(pool, peers, options, std::move(group)),
      plan_cache_(connection_.geometry(), connection_.payload_bytes()),
      wait_monitor_(pool, peers, options, connection_.group()),
      past_caches_bytes_(options.tuning.past_caches_bytes) {}

Status Channel::Open(const pool::ChannelPlace& place) {
  connection_.Take(place);
  if (negotiation_) {
    connection_.rings()->Publish(rounds_);
    connection_.rings()->Release(rounds_);
    negotiation_->Move();
    CXL_RETURN_IF_ERROR(connection_.FollowMoves());
  }
  return connection_.Publish();
}

bool Channel::CanClose() const {
  if (!idle() || !open()) return false;
  for (int member = 0; member < std::ssize(members()); ++member) {
    const MemberBlock& block = connection_.blocks()[member];
    if (member == connection_.group().self) continue;
    // Once a member has finished all calls of this group, its word `finished`
    // may belong to another group, and count the calls of that group. The words
    // of that group begin above those of this group, so the comparison is still
    // right.
    if (block.control != nullptr &&
        block.doorbells.Read(&block.control->finished.word) >= finished_)
      continue;
    if (!peers_->Ended(RankOf(member))) return false;
  }
  return true;
}

pool::ChannelPlace Channel::Close() {
  const uint64_t most = negotiation_ ? negotiation_->most() : 0;
  plan_cache_.Clear();
  return connection_.Close(std::max({rounds_, finished_, most}));
}

Status Channel::AddCall(std::unique_ptr<Call>& call) {
  CXL_ASSIGN_OR_RETURN(std::shared_ptr<const CallPlan> call_plan,
                       plan_cache_.Find(*call));
  at_once_ = idle();
  StartedCall started = {std::move(call), std::move(call_plan)};
  if (negotiation_)
    negotiation_->Submit(std::move(started));
  else
    waiting_.push_back(std::move(started));
  return OkStatus();
}

Result<bool> Channel::Connect() {
  if (!open()) return false;
  if (negotiation_) return true;
  if (waiting_.empty()) return false;
  CXL_ASSIGN_OR_RETURN(const bool connected, connection_.Connect());
  if (!connected) return false;
  negotiation_ =
      std::make_unique<Negotiation>(connection_.blocks(), connection_.group(),
                                    connection_.payload_bytes(), &traffic_);
  for (; !waiting_.empty(); waiting_.pop_front())
    negotiation_->Submit(std::move(waiting_.front()));
  return true;
}

Result<bool> Channel::Progress(std::vector<Finished>* finished) {
  const size_t before = finished->size();
  Result<bool> moved = TryProgress(finished);
  finished_ += finished->size() - before;
  if (finished_ != told_finished_ && moved.ok()) {
    // The other members read this word in CanClose, before they take their
    // memory from the group.
    const MemberBlock& own = connection_.own();
    own.doorbells.Ring(&own.control->finished.word, finished_);
    told_finished_ = finished_;
  }
  at_once_ = false;
  return moved;
}

Result<bool> Channel::TryProgress(std::vector<Finished>* finished) {
  CXL_ASSIGN_OR_RETURN(const bool connected, Connect());
  if (!connected) return false;
  CXL_ASSIGN_OR_RETURN(bool moved, ExchangeSubmissions(finished));
  for (;;) {
    if (!current_) {
      CXL_ASSIGN_OR_RETURN(const bool started, StartNext());
      if (!started) return moved;
      moved = true;
    }
    const size_t before = execution_->steps_done();
    CXL_ASSIGN_OR_RETURN(const bool done, execution_->Advance(&traffic_));
    moved |= execution_->steps_done() != before;
    if (!done) return moved;
    rounds_ = call_ends_.back();
    execution_.reset();
    CXL_RETURN_IF_ERROR(pool_->CheckIntact());
    finished->push_back({std::move(current_), OkStatus()});
  }
}

Result<bool> Channel::ExchangeSubmissions(std::vector<Finished>* finished) {
  const size_t before = finished->size();
  Result<bool> moved = negotiation_->ExchangeSubmissions(finished);
  if (finished->size() == before) return moved;
  for (size_t i = before; i < finished->size(); ++i)
    RecordStart(*(*finished)[i].call);
  Status intact = pool_->CheckIntact();
  if (intact.ok()) return moved;
  for (size_t i = before; i < finished->size(); ++i)
    (*finished)[i].status = intact;
  return intact;
}

Result<bool> Channel::StartNext() {
  if (pending() == 0) return false;
  CXL_ASSIGN_OR_RETURN(StartedCall next, negotiation_->Next(ReleasedCalls()));
  if (next.call == nullptr) return false;
  current_ = std::move(next.call);
  RecordStart(*current_);
  call_ends_.push_back(rounds_ + next.call_plan->plan.rounds);
  // The Execution gets a shared_ptr to the plan. This shared_ptr keeps the
  // whole CallPlan alive.
  const plan::Plan* plan = &next.call_plan->plan;
  execution_.emplace(
      std::shared_ptr<const plan::Plan>(std::move(next.call_plan), plan),
      connection_.rings(), rounds_, current_->dtype, current_->reduce_op,
      current_->input, current_->output, past_caches_bytes_,
      current_->rows.get(), current_->buffers.get());
  return true;
}

void Channel::RecordStart(const Call& call) {
  recorder_->Start(call.number, at_once_ ? call.submitted : Ticks());
}

uint64_t Channel::ReleasedCalls() {
  while (!call_ends_.empty() &&
         connection_.rings()->BehindReleasing(call_ends_.front()) < 0) {
    call_ends_.pop_front();
    ++released_calls_;
  }
  return released_calls_;
}

std::vector<int> Channel::WaitingFor() const {
  if (current_)
    return execution_ && execution_->waiting_for() >= 0
               ? std::vector<int>{execution_->waiting_for()}
               : std::vector<int>{};
  if (!open()) return {};
  return negotiation_ ? negotiation_->WaitingFor() : connection_.Missing();
}

const Call* Channel::oldest() const {
  if (current_) return current_.get();
  if (!waiting_.empty()) return waiting_.front().call.get();
  return negotiation_ ? negotiation_->oldest() : nullptr;
}

Status Channel::CheckPeers(Clock::time_point now) {
  const Call* call = oldest();
  if (call == nullptr) return OkStatus();
  // While a call executes, no member moves: a member moves only after all
  // members have finished the call.
  if (!current_) CXL_RETURN_IF_ERROR(connection_.FollowMoves());
  const std::vector<int> members = WaitingFor();
  recorder_->Wait(call->number, members.empty() ? -1 : RankOf(members[0]));
  const uint64_t steps = execution_ ? execution_->steps_done() : 0;
  return wait_monitor_.Check({.call = call,
                              .members = members,
                              .started = current_ != nullptr,
                              .progress = (rounds_ << 32) + steps,
                              .needed_pool_bytes = needed_pool()},
                             now);
}

void Channel::EndLaunch(uint64_t program, uint32_t launch, const Status& status,
                        std::vector<Finished>* finished) {
  std::erase_if(waiting_, [&](StartedCall& started) {
    if (!IsOf(*started.call, program, launch)) return false;
    finished->push_back({std::move(started.call), status});
    return true;
  });
  if (negotiation_) negotiation_->EndLaunch(program, launch, status, finished);
}

void Channel::Fail(const Status& status, std::vector<Finished>* finished) {
  if (current_) finished->push_back({std::move(current_), status});
  execution_.reset();
  for (; !waiting_.empty(); waiting_.pop_front())
    finished->push_back({std::move(waiting_.front().call), status});
  if (negotiation_) negotiation_->Fail(status, finished);
}

}  // namespace jax_cxl::comm
