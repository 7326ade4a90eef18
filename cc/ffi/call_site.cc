#include "cc/ffi/call_site.h"

#include <sstream>
#include <utility>

#include "cc/ffi/program_sites.h"
#include "cc/plan/plan.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// A 64-bit mixer (the finalizer of SplitMix64): equal input, equal output on
// all hosts.
uint64_t Mix(uint64_t seed, uint64_t value) {
  uint64_t z = seed + 0x9e3779b97f4a7c15 + value;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

xffi::TypeId CallSite::id = {};

xffi::ErrorOr<std::unique_ptr<CallSite>> CallSite::Make(
    xffi::Dictionary attributes) {
  auto op = attributes.get<int32_t>("op");
  auto reduce_op = attributes.get<int32_t>("reduce_op");
  auto dtype = attributes.get<int32_t>("dtype");
  auto count = attributes.get<int64_t>("count");
  auto root = attributes.get<int32_t>("root");
  auto group_size = attributes.get<int32_t>("group_size");
  auto groups = attributes.get<xffi::Span<const int32_t>>("groups");
  auto sources = attributes.get<xffi::Span<const int32_t>>("sources");
  auto reverse = attributes.get<int32_t>("reverse");
  auto rows = attributes.get<xffi::Span<const int64_t>>("rows");
  auto generation = attributes.get<int32_t>("generation");
  auto program = attributes.get<std::string_view>("program");
  auto name = attributes.get<std::string_view>("name");
  if (!op || !reduce_op || !dtype || !count || !root || !group_size ||
      !groups || !sources || !reverse || !rows || !generation || !program ||
      !name)
    return xffi::Unexpected(xffi::Error::Internal(
        "a jax_cxl custom call lacks an attribute: it was lowered by another "
        "version of jax_cxl"));
  if (*op < 0 || *op >= plan::kNumOps || *dtype < 0 || *dtype >= kNumDTypes ||
      *reduce_op < 0 || *reduce_op >= kNumReduceOps || *count < 0 ||
      *group_size < 1 || groups->size() % *group_size != 0 ||
      (static_cast<plan::Op>(*op) == plan::Op::kRaggedAllToAll &&
       rows->size() != 3))
    return xffi::Unexpected(xffi::Error::Internal(
        "a jax_cxl custom call has an attribute out of range"));

  std::unique_ptr<CallSite> made(new CallSite);
  made->prototype_.request.op = static_cast<plan::Op>(*op);
  made->prototype_.request.num_ranks = *group_size;
  made->prototype_.request.count = static_cast<uint64_t>(*count);
  made->prototype_.dtype = static_cast<DType>(*dtype);
  made->prototype_.request.element_bytes =
      static_cast<uint32_t>(DTypeBytes(made->prototype_.dtype));
  made->prototype_.request.root = *root;
  if (made->prototype_.request.op == plan::Op::kPermute)
    made->prototype_.request.sources.assign(sources->begin(), sources->end());
  made->prototype_.request.reverse = *reverse != 0;
  if (made->prototype_.request.op == plan::Op::kRaggedAllToAll) {
    plan::Ragged& ragged = made->prototype_.request.ragged;
    ragged.input_rows = static_cast<uint64_t>((*rows)[0]);
    ragged.output_rows = static_cast<uint64_t>((*rows)[1]);
    ragged.slices = static_cast<uint64_t>((*rows)[2]);
  }
  made->prototype_.reduce_op = static_cast<ReduceOp>(*reduce_op);
  made->prototype_.name = std::string(*name);
  made->prototype_.site = ProgramSites::Get().LinesOf(
      std::string(*program), LineKey(*name, *op, *reduce_op, *dtype, *count));
  for (size_t first = 0; first < groups->size(); first += *group_size) {
    const auto begin = groups->begin() + first;
    made->groups_.emplace_back(begin, begin + *group_size);
    for (int32_t rank : made->groups_.back())
      made->group_of_rank_[rank] = static_cast<int>(made->groups_.size()) - 1;
  }
  made->generation_ = *generation;
  made->key_ = Mix(0, ProgramSites::Get().Next(std::string(*program)));
  return made;
}

std::string CallSite::LineKey(std::string_view name, int op, int reduce_op,
                              int dtype, int64_t count) {
  std::ostringstream key;
  key << name << ' ' << op << ' ' << reduce_op << ' ' << dtype << ' ' << count;
  return key.str();
}

const std::vector<int32_t>* CallSite::GroupOf(int rank) const {
  auto found = group_of_rank_.find(rank);
  return found == group_of_rank_.end() ? nullptr : &groups_[found->second];
}

uint64_t CallSite::NextIdentity(int64_t run_id, int32_t device_ordinal) {
  uint64_t execution = 0;
  {
    std::lock_guard lock(mutex_);
    Launches& known = launches_[device_ordinal];
    Launches::Launch* launch = nullptr;
    for (Launches::Launch& candidate : known.launches)
      if (candidate.executions > 0 && candidate.run_id == run_id)
        launch = &candidate;
    if (launch == nullptr) {
      launch = &known.launches[known.oldest];
      known.oldest = (known.oldest + 1) % Launches::kRemembered;
      *launch = {run_id, 0};
    }
    execution = launch->executions++;
  }
  return Mix(Mix(key_, static_cast<uint64_t>(run_id)), execution);
}

}  // namespace jax_cxl::ffi
