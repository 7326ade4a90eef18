#include "cc/comm/order/in_order.h"

#include <utility>

#include "cc/base/ticks.h"
#include "cc/engine/cpu/one_round.h"
#include "cc/plan/plan.h"
#include "cc/plan/planners/make_plan.h"

namespace jax_cxl::comm {
namespace {

// Looking after peers costs a line a peer: not on every poll.
constexpr int kPollsPerLook = 256;
constexpr uint64_t kCallsPerCatchUp = pool::kCallRing / 4;

}  // namespace

InOrder::InOrder(pool::Pool* pool, Peers* peers, const Options& options,
                 Group group)
    : pool_(pool),
      peers_(peers),
      connection_(pool, peers, options, std::move(group), Order::kProgram),
      plan_cache_(connection_.geometry(), connection_.payload_bytes()),
      wait_monitor_(pool, peers, options, connection_.group()),
      past_caches_bytes_(options.tuning.past_caches_bytes),
      compared_(connection_.group().members.size()),
      payloads_(connection_.group().members.size()) {}

Status InOrder::Open(Arena* arena, Recorder* recorder) {
  recorder_ = recorder;
  return connection_.Open(arena, recorder);
}

Status InOrder::Run(Call* call) {
  CXL_RETURN_IF_ERROR(failed_);
  call_ = call;
  polls_ = 0;
  backoff_.Reset();
  call->identity = calls_ + 1;
  call->submitted = Ticks();
  recorder_->Record(call, connection_.key());
  Status status = TryRun();
  if (!status.ok()) {
    // Before the call is over: a peer that looks for the rank that blocks it
    // then sees at least one of the two.
    const Group& group = connection_.group();
    peers_->GiveUp(group.members[group.self], status);
    failed_ = status;
  }
  recorder_->Finish(call->number, status, Ticks());
  return status;
}

Status InOrder::TryRun() {
  CXL_ASSIGN_OR_RETURN(std::shared_ptr<const CallPlan> call_plan,
                       plan_cache_.Find(*call_));
  CXL_RETURN_IF_ERROR(Start(*call_plan));
  for (int member : call_plan->reads) CXL_RETURN_IF_ERROR(Await(member));
  const bool at_once = polls_ == 0;
  recorder_->Start(call_->number, at_once ? call_->submitted : Ticks());
  if (call_plan->eager)
    cpu::RetrievePayloads(call_plan->plan, call_->dtype, call_->reduce_op,
                          connection_.group().self, payloads_, call_->input,
                          call_->output, &sources_, &traffic_);
  for (int member : call_plan->reads) Pop(member);
  if (call_->request.op == plan::Op::kRaggedAllToAll)
    CXL_RETURN_IF_ERROR(RunRagged());
  else if (!call_plan->eager)
    CXL_RETURN_IF_ERROR(RunPlan({call_plan, &call_plan->plan}, call_->dtype,
                                call_->input, call_->output));
  return pool_->CheckIntact();
}

Status InOrder::Connect() {
  for (;;) {
    CXL_ASSIGN_OR_RETURN(const bool connected, connection_.Connect());
    if (connected) break;
    CXL_RETURN_IF_ERROR(Pause(connection_.Missing().front(), false, 0));
  }
  submissions_.emplace(connection_.doorbells(), connection_.blocks(),
                       connection_.group(), connection_.payload_bytes());
  return OkStatus();
}

Status InOrder::Start(const CallPlan& call_plan) {
  if (!submissions_) CXL_RETURN_IF_ERROR(Connect());
  // A peer that is as far as this call has read all before it, so there is
  // always room in the end.
  for (;;) {
    CXL_ASSIGN_OR_RETURN(const bool can, submissions_->CanWrite());
    if (can && calls_ % kCallsPerCatchUp != 0) break;
    CXL_RETURN_IF_ERROR(CatchUp());
    if (can) break;
    CXL_RETURN_IF_ERROR(Pause(-1, false, 0));
  }
  if (call_plan.eager)
    cpu::PutPayload(call_plan.plan, call_->input, submissions_->payload(),
                    &traffic_);
  history_[++calls_ % history_.size()] = call_plan.descriptor;
  submissions_->Write(calls_, *call_, call_plan.descriptor,
                      call_plan.eager ? call_plan.payload_bytes : 0);
  return OkStatus();
}

Status InOrder::CatchUp() {
  for (size_t member = 0; member < compared_.size(); ++member)
    if (static_cast<int>(member) != connection_.group().self)
      CXL_RETURN_IF_ERROR(CatchUp(static_cast<int>(member), calls_).status());
  return OkStatus();
}

Result<bool> InOrder::CatchUp(int member, uint64_t calls) {
  while (compared_[member] < calls) {
    Submissions::Entry entry;
    CXL_ASSIGN_OR_RETURN(const bool here, submissions_->Peek(member, &entry));
    if (!here) return false;
    CXL_RETURN_IF_ERROR(Compare(member, entry));
    Pop(member);
  }
  return true;
}

Status InOrder::Await(int member) {
  for (;;) {
    CXL_ASSIGN_OR_RETURN(const bool others, CatchUp(member, calls_ - 1));
    Submissions::Entry entry;
    if (others) {
      CXL_ASSIGN_OR_RETURN(const bool here, submissions_->Peek(member, &entry));
      if (here) {
        NoteProgress();
        payloads_[member] = entry.payload;
        return Compare(member, entry);
      }
    }
    CXL_RETURN_IF_ERROR(Pause(member, false, 0));
  }
}

Status InOrder::Compare(int member, const Submissions::Entry& entry) const {
  const uint64_t call = compared_[member] + 1;
  const pool::CallDescriptor& mine = history_[call % history_.size()];
  if (entry.identity != call)
    return submissions_->Corrupt(member, "calls out of order");
  if (entry.descriptor == mine) return OkStatus();
  const Group& group = connection_.group();
  return Error(
      Code::kMismatch, "the ranks disagree about call ", call,
      " of their group: rank ", group.members[group.self], " calls ",
      call == calls_ ? DescribeText(*call_) : DescribeText(mine, "a call"),
      "; rank ", group.members[member], " calls ",
      submissions_->Describe(member, entry.descriptor, entry.name));
}

void InOrder::Pop(int member) {
  submissions_->Pop(member);
  ++compared_[member];
}

Status InOrder::RunRagged() {
  plan::Request& request = call_->request;
  CXL_ASSIGN_OR_RETURN(
      plan::Plan tables,
      plan::MakePlan(GatherTables(call_), connection_.geometry()));
  CXL_RETURN_IF_ERROR(RunPlan(
      std::make_shared<const plan::Plan>(std::move(tables)), DType::kInt64,
      reinterpret_cast<const std::byte*>(call_->table.data()),
      reinterpret_cast<std::byte*>(request.ragged.tables.data())));
  CXL_ASSIGN_OR_RETURN(plan::Plan rows,
                       plan::MakePlan(request, connection_.geometry()));
  return RunPlan(std::make_shared<const plan::Plan>(std::move(rows)),
                 call_->dtype, call_->input, call_->output);
}

Status InOrder::RunPlan(std::shared_ptr<const plan::Plan> plan, DType dtype,
                        const std::byte* input, std::byte* output) {
  const uint64_t rounds = plan->rounds;
  cpu::Execution execution(std::move(plan), connection_.rings(), rounds_, dtype,
                           call_->reduce_op, input, output, past_caches_bytes_);
  for (size_t steps = 0; !execution.Advance(&traffic_);) {
    if (execution.steps_done() != steps) {
      NoteProgress();
      steps = execution.steps_done();
    }
    CXL_RETURN_IF_ERROR(
        Pause(execution.waiting_for(), true, (rounds_ << 32) + steps));
  }
  NoteProgress();
  rounds_ += rounds;
  return OkStatus();
}

void InOrder::NoteProgress() {
  backoff_.Reset();
  if (!suspicion_.ok()) suspicion_ = OkStatus();
}

Status InOrder::Pause(int member, bool inside, uint64_t moved) {
  if (!suspicion_.ok()) return suspicion_;
  backoff_.Pause();
  if (++polls_ % kPollsPerLook != 0) return OkStatus();
  const auto members =
      member < 0 ? submissions_->RingHolders() : std::vector{member};
  recorder_->Wait(call_->number, members.empty()
                                     ? -1
                                     : connection_.group().members[members[0]]);
  // What a peer did last, before it ended, may be all that was missing: the
  // caller looks once more.
  suspicion_ =
      wait_monitor_.Check({call_, members, inside, moved}, peers_->AwakeTime());
  return OkStatus();
}

}  // namespace jax_cxl::comm
