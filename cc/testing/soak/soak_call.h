#ifndef JAX_CXL_TESTING_SOAK_SOAK_CALL_H_
#define JAX_CXL_TESTING_SOAK_SOAK_CALL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/dtype.h"
#include "cc/comm/call/call.h"
#include "cc/engine/cpu/taken_rows.h"
#include "cc/plan/plan.h"
#include "cc/testing/reference/reduce_reference.h"
#include "cc/testing/soak/soak_data.h"

// One collective of the soak. All parameters that a caller may choose are
// random. Plain loops over all ranks' buffers compute the expected result.
namespace jax_cxl::comm::soak {

// A collective of all members of a group.
class SoakCall {
 public:
  // `large` is the approximate size of the largest blocks, in bytes.
  SoakCall(Random& random, std::vector<int32_t> members, uint64_t identity,
           uint64_t large)
      : SoakCall(random, std::move(members), identity, large,
                 static_cast<plan::Op>(Pick(random, 0, plan::kNumOps - 1))) {}

  SoakCall(Random& random, std::vector<int32_t> members, uint64_t identity,
           uint64_t large, plan::Op op)
      : members_(std::move(members)), identity_(identity) {
    const int n = static_cast<int>(members_.size());
    request_.op = op;
    request_.num_ranks = n;
    do {
      dtype_ = static_cast<DType>(Pick(random, 0, kNumDTypes - 1));
      reduce_op_ = static_cast<ReduceOp>(Pick(random, 0, kNumReduceOps - 1));
    } while (Reduces() && !cpu::reference::CanReduce(dtype_, reduce_op_));
    request_.element_bytes = DTypeBytes(dtype_);
    if (request_.op != plan::Op::kBarrier)
      request_.count = RandomCount(random, large / request_.element_bytes);
    request_.root = static_cast<int>(Pick(random, 0, n - 1));
    request_.reverse = random() % 2 == 0;
    if (request_.op == plan::Op::kPermute) RandomSources(random);
    if (request_.op == plan::Op::kTakeRows) RandomRows(random);
    if (request_.op == plan::Op::kRaggedAllToAll) {
      request_.rows.table = request_.count;
      request_.count *= Pick(random, 1, 3);
      request_.rows.taken = request_.rows.table + Pick(random, 0, 3);
      request_.rows.slices = Pick(random, 1, 3);
      slices_ = RandomSlices(random, n, request_.rows);
    }
    for (int r = 0; r < n; ++r) {
      request_.rank = r;
      inputs_.emplace_back(plan::InputBytes(request_), RandomOffset(random));
      outputs_.emplace_back(plan::OutputBytes(request_), RandomOffset(random));
      Fill(random, dtype_, inputs_[r].data(), inputs_[r].bytes());
    }
  }

  const std::vector<int32_t>& members() const { return members_; }
  plan::Op op() const { return request_.op; }
  DType dtype() const { return dtype_; }
  // For take_rows: the rows that a member takes, and a mask of the rows that it
  // publishes. If the mask is empty, it publishes all its rows.
  const std::vector<int32_t>& indices(int self) const { return indices_[self]; }
  const std::vector<uint8_t>& published(int self) const {
    return published_[self];
  }
  // For ragged_all_to_all: a member's table of slices.
  std::vector<int64_t> slices(int self) const {
    const auto size = slices_.size() / members_.size();
    const auto begin = slices_.begin() + self * size;
    return {begin, begin + size};
  }

  // Returns the call that the member `self` starts.
  std::unique_ptr<Call> ForMember(int self) {
    auto call = std::make_unique<Call>();
    call->identity = identity_;
    call->request = request_;
    call->request.rank = self;
    call->dtype = dtype_;
    call->reduce_op = reduce_op_;
    call->input = inputs_[self].data();
    call->output = outputs_[self].data();
    call->name = "soak";
    if (request_.op == plan::Op::kTakeRows && request_.count > 0) {
      cpu::ZeroRows(request_, indices_[self], outputs_[self].data());
      call->rows = std::make_shared<cpu::TakenRows>(
          cpu::TakenRows::Of(call->request, indices_[self], published_[self]));
    }
    if (request_.op == plan::Op::kRaggedAllToAll && request_.count > 0) {
      const std::vector<int64_t> table = slices(self);
      call->row_operands.slices = table.data();
      call->row_operands.slice_entry_bytes = sizeof(int64_t);
      SetRows(call.get());
      call->row_operands = {};  // The table is gone.
    }
    return call;
  }

  // Returns true if no byte around the members' inputs and outputs has changed.
  bool GuardsIntact() const {
    auto intact = [](const Buffer& buffer) { return buffer.GuardsIntact(); };
    return std::all_of(inputs_.begin(), inputs_.end(), intact) &&
           std::all_of(outputs_.begin(), outputs_.end(), intact);
  }

  // Returns how many elements are wrong in the results of all members. If bytes
  // around a member's result have changed, they count as one wrong element.
  uint64_t CountWrong() const {
    uint64_t wrong = 0;
    for (size_t r = 0; r < members_.size(); ++r)
      wrong += CountWrong(static_cast<int>(r));
    return wrong;
  }

  // Returns how many elements are wrong in one member's result.
  uint64_t CountWrong(int self) const {
    uint64_t wrong = 0;
    const size_t element = request_.element_bytes;
    const std::vector<std::byte> want = Expected(self);
    for (size_t i = 0; i < want.size(); i += element)
      wrong += std::memcmp(&want[i], outputs_[self].data() + i, element) != 0;
    return wrong + !outputs_[self].GuardsIntact();
  }

  std::string Text() const {
    std::ostringstream text;
    text << plan::OpName(op());
    if (Reduces()) text << ' ' << ReduceOpName(reduce_op_);
    text << " of " << request_.count << ' ' << DTypeName(dtype_) << ", root "
         << request_.root << ", members";
    for (int32_t member : members_) text << ' ' << member;
    return text.str();
  }

 private:
  bool Reduces() const { return plan::Reduces(request_.op); }

  static size_t RandomOffset(Random& random) {
    return random() % 2 == 0 ? 0 : Pick(random, 0, 63);
  }

  static int64_t RandomCount(Random& random, int64_t large) {
    const int64_t kind = Pick(random, 0, 99);
    if (kind < 8) return 0;
    if (kind < 55) return Pick(random, 1, 20);
    if (kind < 98) return Pick(random, 1, 1000);
    return Pick(random, 1, std::max<int64_t>(large, 1));
  }

  void RandomSources(Random& random) {
    std::vector<int32_t>& sources = request_.sources;
    sources.resize(members_.size());
    std::iota(sources.begin(), sources.end(), 0);
    std::shuffle(sources.begin(), sources.end(), random);
    for (int32_t& source : sources)
      if (random() % 4 == 0) source = -1;
  }

  // Chooses the rows of a take_rows. A row has up to 40 elements, or more if
  // there would be too many rows. Every rank takes some rows, some of them
  // twice, and some outside the table. Half of the calls publish only the rows
  // that other ranks take.
  void RandomRows(Random& random) {
    const int64_t n = members_.size();
    constexpr int64_t kMostRows = 10'000;
    const int64_t count = request_.count;
    const int64_t elements =
        std::max<int64_t>(Pick(random, 1, 40), count / kMostRows);
    const int64_t rows = count / elements;
    request_.count = rows * elements;
    request_.rows = {static_cast<uint64_t>(rows),
                     static_cast<uint64_t>(Pick(random, 0, rows))};
    const bool masks = random() % 2 == 0;
    published_.assign(n, std::vector<uint8_t>(masks ? rows : 0));
    indices_.resize(n);
    for (int64_t r = 0; r < n; ++r) {
      for (uint64_t i = 0; i < request_.rows.taken; ++i) {
        const int64_t index = Pick(random, -1, n * rows);
        indices_[r].push_back(static_cast<int32_t>(index));
        if (masks && index >= 0 && index < n * rows && index / rows != r)
          published_[index / rows][index % rows] = 1;
      }
    }
  }

  // Returns the expected result of member `self`. Bytes that the collective
  // does not write have the value kFill.
  std::vector<std::byte> Expected(int self) const {
    using plan::Op;
    const int n = static_cast<int>(members_.size());
    const size_t block = request_.count * request_.element_bytes;
    std::vector<std::byte> want(outputs_[self].bytes(), Buffer::kFill);
    auto copy = [&](size_t to, int from_rank, size_t from, size_t bytes) {
      if (bytes > 0)
        std::memcpy(&want[to], inputs_[from_rank].data() + from, bytes);
    };
    // Reduces one block of the inputs of ranks [first, last). In each input,
    // the block begins at byte `from`.
    auto reduce = [&](int first, int last, size_t from) {
      std::vector<const std::byte*> sources;
      for (int p = first; p < last; ++p)
        sources.push_back(inputs_[p].data() + from);
      if (block > 0 && !sources.empty())
        cpu::reference::Reduce(dtype_, reduce_op_, sources, want.data(),
                               request_.count);
    };
    const bool rooted = self == request_.root, reverse = request_.reverse;
    switch (request_.op) {
      case Op::kBarrier:
        break;
      case Op::kGather:
        if (!rooted) break;
        [[fallthrough]];
      case Op::kAllGather:
        for (int p = 0; p < n; ++p) copy(p * block, p, 0, block);
        break;
      case Op::kReduce:
        if (!rooted) break;
        [[fallthrough]];
      case Op::kAllReduce:
        reduce(0, n, 0);
        break;
      case Op::kReduceScatter:
        reduce(0, n, self * block);
        break;
      case Op::kAllToAll:
        for (int p = 0; p < n; ++p) copy(p * block, p, self * block, block);
        break;
      case Op::kBroadcast:
        copy(0, request_.root, 0, block);
        break;
      case Op::kScatter:
        copy(0, request_.root, self * block, block);
        break;
      case Op::kPermute:
        std::fill(want.begin(), want.end(), std::byte{0});
        if (const int32_t source = request_.sources[self]; source >= 0)
          copy(0, source, 0, block);
        break;
      case Op::kScan:
        reduce(reverse ? self : 0, reverse ? n : self + 1, 0);
        break;
      case Op::kExscan:
        reduce(reverse ? self + 1 : 0, reverse ? n : self, 0);
        break;
      case Op::kTakeRows: {
        if (block == 0) break;
        std::fill(want.begin(), want.end(), std::byte{0});
        const int64_t rows = request_.rows.table;
        const size_t row = block / rows;
        for (size_t i = 0; i < indices_[self].size(); ++i)
          if (const int64_t g = indices_[self][i]; g >= 0 && g < n * rows)
            copy(i * row, g / rows, g % rows * row, row);
        break;
      }
      case Op::kRaggedAllToAll: {
        if (block == 0) break;
        const uint64_t slices = request_.rows.slices;
        const size_t entries = n * slices, row = block / request_.rows.table;
        for (int p = 0; p < n; ++p) {
          const int64_t* table = &slices_[p * 4 * entries];
          for (size_t k = self * slices; k < (self + 1) * slices; ++k)
            copy(table[2 * entries + k] * row, p, table[k] * row,
                 table[entries + k] * row);
        }
        break;
      }
    }
    return want;
  }

  std::vector<int32_t> members_;
  uint64_t identity_;
  plan::Request request_;
  DType dtype_ = DType::kUint8;
  ReduceOp reduce_op_ = ReduceOp::kSum;
  // For take_rows: the rows that each member takes, and the masks of the rows
  // that it publishes.
  std::vector<std::vector<int32_t>> indices_;
  std::vector<std::vector<uint8_t>> published_;
  std::vector<int64_t> slices_;  // ragged_all_to_all: tables of all members
  std::vector<Buffer> inputs_;
  std::vector<Buffer> outputs_;
};

}  // namespace jax_cxl::comm::soak

#endif  // JAX_CXL_TESTING_SOAK_SOAK_CALL_H_
