#include "cc/ffi/call/call_site.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <sstream>
#include <string>
#include <string_view>

#include "cc/ffi/call/program_sites.h"
#include "cc/plan/plan.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// Mixes `value` into the hash `seed` (by the finalizer of SplitMix64). It gives
// the same output for the same input on all hosts.
uint64_t Mix(uint64_t seed, uint64_t value) {
  uint64_t z = seed + 0x9e3779b97f4a7c15 + value;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

using Int32s = xffi::Span<const int32_t>;
using Int64s = xffi::Span<const int64_t>;

// Expands to V(type, name) for each attribute of a call.
// jax_cxl/_lowering/contract.py explains the attributes.
#define JAX_CXL_CALL_ATTRIBUTES(V) \
  V(std::string_view, name)        \
  V(int32_t, op)                   \
  V(int32_t, reduce_op)            \
  V(int32_t, dtype)                \
  V(int64_t, count)                \
  V(int32_t, root)                 \
  V(int32_t, group_size)           \
  V(Int32s, groups)                \
  V(Int32s, sources)               \
  V(int32_t, reverse)              \
  V(Int64s, rows)                  \
  V(int32_t, processes)            \
  V(Int32s, places)                \
  V(int32_t, generation)           \
  V(std::string_view, program)     \
  V(int64_t, site)

// The attributes of one call. Their texts and arrays are in XLA's memory.
struct CallAttributes {
#define JAX_CXL_MEMBER(type, name) type name = {};
  JAX_CXL_CALL_ATTRIBUTES(JAX_CXL_MEMBER)
#undef JAX_CXL_MEMBER
};

// Reads all attributes into `*read`, and does not check their values. Returns
// the name of an attribute that is missing, or "".
std::string Read(const xffi::Dictionary& attributes, CallAttributes* read) {
  std::string missing;
#define JAX_CXL_READ(type, name)                       \
  if (auto value = attributes.get<type>(#name); value) \
    read->name = *value;                               \
  else                                                 \
    missing = #name;
  JAX_CXL_CALL_ATTRIBUTES(JAX_CXL_READ)
#undef JAX_CXL_READ
  return missing;
}

// Checks the attributes of a grid (CallSite::grid). The grid has a row for each
// process, and all rows have the same length. `places` lists the rows, one
// after another. Returns true if `places` contains each place of the group
// exactly once and the operation has levels, or if the grid is empty (0
// processes), as for a call that does not run in levels.
bool IsGrid(plan::Op op, int32_t processes, xffi::Span<const int32_t> places,
            int32_t group_size) {
  if (processes == 0) return places.size() == 0;
  std::vector<int32_t> sorted(places.begin(), places.end());
  std::ranges::sort(sorted);
  return cpu::HasLevels(op) && processes > 0 && group_size % processes == 0 &&
         std::ranges::equal(sorted, std::views::iota(0, group_size));
}

// Returns true if the attribute `rows` has the entries that the operation
// needs. For a ragged_all_to_all, the last entry is the number of elements of a
// batch, and all other entries must be multiples of that number.
bool AreRowSizes(plan::Op op, xffi::Span<const int64_t> rows) {
  if (std::ranges::any_of(rows, [](int64_t size) { return size < 0; }))
    return false;
  if (op != plan::Op::kRaggedAllToAll)
    return rows.size() == (op == plan::Op::kTakeRows ? 2 : 0);
  return rows.size() == 4 && rows[3] != 0 &&
         std::ranges::none_of(
             rows, [&](int64_t size) { return size % rows[3] != 0; });
}

// Returns, for each member of a permutation, the lowest member of its cycle or
// chain. A cycle or chain consists of the members that receive from each other,
// directly or indirectly. Only these have to run the permutation together.
std::vector<int32_t> FirstsOfChains(const std::vector<int32_t>& sources) {
  const auto size = static_cast<int32_t>(sources.size());
  std::vector<int32_t> firsts(size);
  std::iota(firsts.begin(), firsts.end(), 0);
  auto first_of = [&](int32_t member) {
    while (firsts[member] != member) member = firsts[member];
    return member;
  };
  for (int32_t member = 0; member < size; ++member) {
    if (sources[member] < 0) continue;
    const int32_t a = first_of(member), b = first_of(sources[member]);
    firsts[std::max(a, b)] = std::min(a, b);
  }
  for (int32_t member = 0; member < size; ++member)
    firsts[member] = first_of(member);
  return firsts;
}

// Returns true if `sources` has an entry for each member, and each entry is a
// member or -1.
bool AreMembers(xffi::Span<const int32_t> sources, int32_t group_size) {
  return sources.size() == static_cast<size_t>(group_size) &&
         std::ranges::all_of(sources, [group_size](int32_t source) {
           return source >= -1 && source < group_size;
         });
}

}  // namespace

xffi::TypeId CallSite::id = {};

xffi::ErrorOr<std::unique_ptr<CallSite>> CallSite::Make(
    xffi::Dictionary attributes) {
  CallAttributes a;
  if (const std::string missing = Read(attributes, &a); !missing.empty())
    return xffi::Unexpected(xffi::Error::Internal(
        "a jax_cxl custom call lacks the attribute '" + missing +
        "': another version of jax_cxl lowered it. Compile the program again"));
  const auto op = static_cast<plan::Op>(a.op);
  if (a.op < 0 || a.op >= plan::kNumOps || a.dtype < 0 ||
      a.dtype >= kNumDTypes || a.reduce_op < 0 ||
      a.reduce_op >= kNumReduceOps || a.count < 0 || a.group_size < 1 ||
      a.root < 0 || a.root >= a.group_size ||
      a.groups.size() % a.group_size != 0 ||
      !IsGrid(op, a.processes, a.places, a.group_size) ||
      (op == plan::Op::kPermute && !AreMembers(a.sources, a.group_size)) ||
      !AreRowSizes(op, a.rows))
    return xffi::Unexpected(xffi::Error::Internal(
        "a jax_cxl custom call has an attribute out of range; compile the "
        "program again with this version of jax_cxl"));

  std::unique_ptr<CallSite> made(new CallSite);
  comm::Call& call = made->prototype_;
  call.dtype = static_cast<DType>(a.dtype);
  call.reduce_op = static_cast<ReduceOp>(a.reduce_op);
  call.name = std::string(a.name);
  plan::Request& request = call.request;
  request.op = op;
  request.num_ranks = a.group_size;
  request.count = static_cast<uint64_t>(a.count);
  request.element_bytes = static_cast<uint32_t>(DTypeBytes(call.dtype));
  request.root = a.root;
  request.reverse = a.reverse != 0;
  if (op == plan::Op::kPermute)
    request.sources.assign(a.sources.begin(), a.sources.end());
  if (plan::MovesRows(op))
    request.rows = {static_cast<uint64_t>(a.rows[0]),
                    static_cast<uint64_t>(a.rows[1]),
                    a.rows.size() > 2 ? static_cast<uint64_t>(a.rows[2]) : 0,
                    a.rows.size() > 3 ? static_cast<uint64_t>(a.rows[3]) : 1};
  // If the compiler hook has replaced no collective of the program, the
  // attributes contain no call numbers. In that case the hook does not add
  // them, because the donation of a module's arguments is dropped when a hook
  // changes the module.
  ProgramSites& sites = ProgramSites::Get();
  const std::string program(a.program);
  int64_t number = a.site;
  if (number < 0) {
    number = static_cast<int64_t>(sites.Next(program));
    call.site = sites.LinesOf(
        program, LineKey(a.name, a.op, a.reduce_op, a.dtype, a.count));
  }
  for (size_t first = 0; first < a.groups.size(); first += a.group_size) {
    const auto begin = a.groups.begin() + first;
    made->AddGroup({begin, begin + a.group_size},
                   {a.sources.begin(), a.sources.end()});
  }
  if (a.processes > 0)
    made->grid_ = {a.processes,
                   a.group_size / a.processes,
                   {a.places.begin(), a.places.end()}};
  made->generation_ = a.generation;
  made->number_ = number;
  made->program_ = sites.Loading(program, a.generation);
  return made;
}

std::string CallSite::LineKey(std::string_view name, int op, int reduce_op,
                              int dtype, int64_t count) {
  std::ostringstream key;
  key << name << ' ' << op << ' ' << reduce_op << ' ' << dtype << ' ' << count;
  return key.str();
}

// Adds a group of ranks. The group of a permutation is split: each of its
// cycles and chains becomes a group.
void CallSite::AddGroup(const std::vector<int32_t>& ranks,
                        const std::vector<int32_t>& sources) {
  const bool permutes = prototype_.request.op == plan::Op::kPermute;
  const std::vector<int32_t> firsts =
      permutes ? FirstsOfChains(sources) : std::vector<int32_t>(ranks.size());
  std::vector<int> groups(ranks.size()), places(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto first = static_cast<size_t>(firsts[i]);
    if (first == i) groups_.emplace_back();
    groups[i] =
        first == i ? static_cast<int>(groups_.size()) - 1 : groups[first];
    places[i] = static_cast<int>(groups_[groups[i]].size());
    groups_[groups[i]].push_back(ranks[i]);
    group_of_rank_[ranks[i]] = groups[i];
  }
  if (!permutes) return;
  sources_.resize(groups_.size());
  for (size_t i = 0; i < ranks.size(); ++i)
    sources_[groups[i]].push_back(sources[i] < 0 ? -1 : places[sources[i]]);
}

Result<CallSite::Execution> CallSite::MakeExecution(int rank, const void* input,
                                                    void* output) const {
  const auto group = group_of_rank_.find(rank);
  if (group == group_of_rank_.end())
    return Error(Code::kInvalidArgument, "rank ", rank,
                 " is in none of the groups of ", prototype_.name,
                 "; compile the program for the devices of this job");
  Execution execution = {&groups_[group->second],
                         std::make_unique<comm::Call>(prototype_)};
  if (prototype_.site.empty() &&
      program_->complete.load(std::memory_order_acquire))
    if (const auto line = program_->lines.find(number_);
        line != program_->lines.end())
      execution.call->site = line->second;
  plan::Request& request = execution.call->request;
  request.num_ranks = static_cast<int>(execution.members->size());
  if (!sources_.empty()) request.sources = sources_[group->second];
  execution.call->input = static_cast<const std::byte*>(input);
  execution.call->output = static_cast<std::byte*>(output);
  request.rank = static_cast<int>(std::ranges::find(*execution.members, rank) -
                                  execution.members->begin());
  return execution;
}

Status CallSite::CheckBuffers(size_t input_bytes, size_t output_bytes) const {
  const plan::Request& request = prototype_.request;
  if (input_bytes == plan::InputBytes(request) &&
      output_bytes == plan::OutputBytes(request))
    return OkStatus();
  return Error(Code::kInternal, prototype_.name, " was lowered for ",
               plan::InputBytes(request), " bytes in and ",
               plan::OutputBytes(request), " out, but got ", input_bytes,
               " and ", output_bytes,
               "; please report this, with the versions of jax and jaxlib");
}

Status CallSite::Identify(int64_t run_id, int32_t device_ordinal,
                          comm::Call* call) {
  const LoadedProgram& program = *program_;
  if (!program.complete.load(std::memory_order_acquire))
    return Error(Code::kInternal, "XLA runs ", call->name,
                 " in a program that jax_cxl has not seen JAX load, so its "
                 "launches have no certain numbers; run it through jax.jit");
  if (program.counted_apart)
    return Error(Code::kInternal, call->name,
                 " is in a program that this process has compiled twice, with "
                 "different settings of XLA. So the launches of the program "
                 "have no certain numbers; compile it with one setting");
  // Ids have 32 bits, and may start again at 0.
  const uint32_t launch = static_cast<uint32_t>(run_id) - program.run_ids_from;
  const uint64_t execution = executions_.Next(device_ordinal, run_id);
  const uint64_t site = Mix(program.hash, static_cast<uint64_t>(number_));
  call->identity = Mix(Mix(site, launch), execution);
  call->program_hash = program.hash;
  call->launch_number = launch;
  call->program = program.name;
  call->launch = launch - program.FirstLaunch(launch) + 1;
  call->execution = execution + 1;
  return OkStatus();
}

}  // namespace jax_cxl::ffi
