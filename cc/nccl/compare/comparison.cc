#include "cc/nccl/compare/comparison.h"

#include <algorithm>
#include <ios>
#include <sstream>

#include "cc/nccl/interface/abi.h"
#include "cc/plan/plan.h"

namespace jax_cxl::nccl {
namespace {

using plan::Op;

int TypeOf(DType dtype) {
  return static_cast<int>(std::ranges::find(kTypes, dtype) - kTypes.begin());
}

bool Overlap(const comm::Call& call) {
  return call.input < call.output + plan::OutputBytes(call.request) &&
         call.output < call.input + plan::InputBytes(call.request);
}

std::string TextOf(const Rule& rule, uint64_t bits) {
  std::ostringstream text;
  text.precision(17);
  text << ValueOf(rule.dtype, bits) << " (0x" << std::hex << bits << ")";
  return text.str();
}

}  // namespace

Comparison::Comparison(Find find, void* shadow,
                       std::unique_ptr<Comparer> comparer, int rank, int size,
                       uint64_t every)
    : find_(std::move(find)),
      shadow_(shadow),
      comparer_(std::move(comparer)),
      rank_(rank),
      size_(size),
      every_(every) {}

Comparison::~Comparison() {
  void* const shadow = shadow_.exchange(nullptr);
  if (shadow == nullptr) return;
  static_cast<void>(comparer_->Drain());
  static_cast<void>(Call("ncclCommDestroy", shadow));
}

// A comparison that failed may have left its steps.
Status Comparison::BeginOn(std::span<const Stream> streams) {
  repeats_.clear();
  results_.clear();
  stream_ = streams[0];
  begun_ = true;
  return comparer_->Begin(streams);
}

Status Comparison::Begin(const std::pair<Collective, Stream>& call_on_stream) {
  begun_ = false;
  if (++collectives_ % every_ != 0) return OkStatus();
  const Collective& collective = call_on_stream.first;
  const comm::Call& call = collective.call;
  const plan::Request& request = call.request;
  CXL_RETURN_IF_ERROR(BeginOn({&call_on_stream.second, 1}));
  const bool is_root = rank_ == request.root;
  const bool reads =
      (request.op != Op::kBroadcast && request.op != Op::kScatter) || is_root;
  const bool writes =
      (request.op != Op::kReduce && request.op != Op::kGather) || is_root;
  const uint64_t in = reads ? plan::InputBytes(request) : 0;
  const uint64_t out = writes ? plan::OutputBytes(request) : 0;

  const std::byte* input = call.input;
  if (in > 0 && out > 0 && Overlap(call)) {
    CXL_ASSIGN_OR_RETURN(std::byte* const saved, comparer_->Take(in));
    CXL_RETURN_IF_ERROR(comparer_->Copy(saved, input, in));
    input = saved;
  }
  CXL_ASSIGN_OR_RETURN(std::byte* const theirs, comparer_->Take(out));
  Results results;
  results.number = collectives_;
  results.text = &*texts_.insert(comm::DescribeText(call)).first;
  results.element_bytes = static_cast<int>(request.element_bytes);
  results.count = out / request.element_bytes;
  results.ours = call.output;
  results.theirs = theirs;
  if (!plan::Reduces(request.op)) {
    results.rule = RuleFor(call.dtype, std::nullopt, size_);
    repeats_.push_back([=, this] { return Move(call, input, theirs); });
  } else {
    results.rule = RuleFor(call.dtype, call.reduce_op, size_,
                           collective.divisor, collective.factor.has_value());
    repeats_.push_back([=, this] { return Reduce(collective, input, theirs); });
  }
  if (results.rule.weighs()) {
    const DType dtype = results.rule.weight_dtype();
    const uint64_t count = in / request.element_bytes;
    CXL_ASSIGN_OR_RETURN(std::byte* const weights,
                         comparer_->Take(count * DTypeBytes(dtype)));
    CXL_RETURN_IF_ERROR(comparer_->Weigh(results.rule, call.input, count,
                                         collective.factor, weights));
    std::byte* const own =
        request.op == Op::kReduceScatter
            ? weights + rank_ * request.count * DTypeBytes(dtype)
            : weights;
    repeats_.push_back([=, this] {
      return Reduce(request, weights, own, TypeOf(dtype), kSum);
    });
    results.weights = own;
  }
  if (out > 0) results_.push_back(results);
  return OkStatus();
}

Status Comparison::Begin(std::span<const Transfer> batch) {
  begun_ = false;
  std::vector<Stream> streams;
  std::vector<const Transfer*> chosen;
  for (const Transfer& transfer : batch) {
    if (transfer.local()) continue;
    if (std::ranges::find(streams, transfer.stream) == streams.end())
      streams.push_back(transfer.stream);
    uint64_t& number = transfers_[{transfer.source, transfer.destination}];
    if (++number % every_ == 0) chosen.push_back(&transfer);
  }
  if (chosen.empty()) return OkStatus();
  CXL_RETURN_IF_ERROR(BeginOn(streams));
  for (const Transfer* each : chosen) {
    const Transfer& transfer = *each;
    const size_t bytes = transfer.bytes;
    const int type = TypeOf(DType::kUint8);
    if (transfer.source == rank_) {
      repeats_.push_back(
          [=, this, from = transfer.input, peer = transfer.destination] {
            return Call("ncclSend", from, bytes, type, peer, shadow_.load(),
                        stream_);
          });
      continue;
    }
    CXL_ASSIGN_OR_RETURN(std::byte* const theirs, comparer_->Take(bytes));
    repeats_.push_back([=, this, to = static_cast<void*>(theirs),
                        peer = transfer.source] {
      return Call("ncclRecv", to, bytes, type, peer, shadow_.load(), stream_);
    });
    const std::string text = "ncclSend of " + std::to_string(bytes) +
                             " bytes from rank " +
                             std::to_string(transfer.source);
    Results results;
    results.number = transfers_[{transfer.source, transfer.destination}];
    results.text = &*texts_.insert(text).first;
    results.count = bytes;
    results.ours = transfer.output;
    results.theirs = theirs;
    results_.push_back(results);
  }
  return OkStatus();
}

Status Comparison::Repeat() {
  if (!begun()) return OkStatus();
  if (shadow_ == nullptr)
    return Error(Code::kPeerLost, "the communicator was aborted");
  for (const auto& repeat : repeats_) CXL_RETURN_IF_ERROR(repeat());
  return OkStatus();
}

Status Comparison::Reduce(const Collective& collective, const void* from,
                          void* to) {
  const int type = TypeOf(collective.call.dtype);
  int op = collective.reduction;
  if (!collective.factor)
    return Reduce(collective.call.request, from, to, type, op);
  const comm::Factor& factor = *collective.factor;
  const void* scalar = factor.at != nullptr ? factor.at : &factor.bits;
  CXL_RETURN_IF_ERROR(
      Call("ncclRedOpCreatePreMulSum", &op, const_cast<void*>(scalar), type,
           factor.at != nullptr ? kScalarDevice : kScalarHostImmediate,
           shadow_.load()));
  const Status status = Reduce(collective.call.request, from, to, type, op);
  const Status destroyed = Call("ncclRedOpDestroy", op, shadow_.load());
  return status.ok() ? destroyed : status;
}

Status Comparison::Reduce(const plan::Request& request, const void* from,
                          void* to, int type, int op) {
  const size_t count = request.count;
  void* const shadow = shadow_;
  if (request.op == Op::kReduce)
    return Call("ncclReduce", from, to, count, type, op, request.root, shadow,
                stream_);
  return Call(
      request.op == Op::kReduceScatter ? "ncclReduceScatter" : "ncclAllReduce",
      from, to, count, type, op, shadow, stream_);
}

// Versions of NCCL before 2.28 do not have functions for all of the moves, so
// some are sends and receives.
Status Comparison::Move(const comm::Call& call, const std::byte* from,
                        std::byte* to) {
  const plan::Request& request = call.request;
  const Op op = request.op;
  const size_t count = request.count;
  const int type = TypeOf(call.dtype);
  void* const shadow = shadow_;
  const void* const input = from;
  void* const output = to;
  if (op == Op::kBroadcast)
    return Call("ncclBroadcast", input, output, count, type, request.root,
                shadow, stream_);
  if (op == Op::kAllGather)
    return Call("ncclAllGather", input, output, count, type, shadow, stream_);
  const uint64_t block = request.count * request.element_bytes;
  for (int peer = 0; peer < size_; ++peer) {
    const void* const sent = op == Op::kGather ? from : from + peer * block;
    void* const received = op == Op::kScatter ? to : to + peer * block;
    if (op == Op::kScatter ? rank_ == request.root
                           : op == Op::kAllToAll || peer == request.root)
      CXL_RETURN_IF_ERROR(
          Call("ncclSend", sent, count, type, peer, shadow, stream_));
    if (op == Op::kGather ? rank_ == request.root
                          : op == Op::kAllToAll || peer == request.root)
      CXL_RETURN_IF_ERROR(
          Call("ncclRecv", received, count, type, peer, shadow, stream_));
  }
  return OkStatus();
}

Status Comparison::End() {
  if (!begun()) return OkStatus();
  for (const Results& results : results_)
    CXL_RETURN_IF_ERROR(comparer_->Compare(results));
  CXL_RETURN_IF_ERROR(comparer_->End());
  begun_ = false;
  return OkStatus();
}

Status Comparison::Check() const {
  const Found found = comparer_->found();
  const Results& results = found.results;
  if (results.number == 0) return OkStatus();
  return Error(Code::kDataLoss, "call ", results.number, ", ", *results.text,
               ": element ", found.element, " on rank ", rank_, " is ",
               TextOf(results.rule, found.ours), ", but ",
               TextOf(results.rule, found.theirs),
               " by NVIDIA's library (JAX_CXL_NCCL_COMPARE)");
}

Status Comparison::Drain() {
  CXL_RETURN_IF_ERROR(comparer_->Drain());
  return Check();
}

void Comparison::Abort() {
  if (void* const shadow = shadow_.exchange(nullptr); shadow != nullptr)
    static_cast<void>(Call("ncclCommAbort", shadow));
}

}  // namespace jax_cxl::nccl
