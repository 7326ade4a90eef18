#include "cc/testing/nccl/stand_in_nccl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {
namespace {

int RankOf(void* shadow) { return *static_cast<int*>(shadow); }

int Start() { return 0; }
int End() {
  return StandInNccl::The().EndGroup() ? 0 : 6;  // ncclRemoteError
}
int AllReduce(const void* in, void* out, size_t count, int type, int op,
              void* shadow, void*) {
  StandInNccl::The().Add(
      {"ncclAllReduce", RankOf(shadow), in, out, count, type, op});
  return 0;
}
int ReduceScatter(const void* in, void* out, size_t count, int type, int op,
                  void* shadow, void*) {
  StandInNccl::The().Add(
      {"ncclReduceScatter", RankOf(shadow), in, out, count, type, op});
  return 0;
}
int Reduce(const void* in, void* out, size_t count, int type, int op, int root,
           void* shadow, void*) {
  StandInNccl::The().Add(
      {"ncclReduce", RankOf(shadow), in, out, count, type, op, root});
  return 0;
}
int Broadcast(const void* in, void* out, size_t count, int type, int root,
              void* shadow, void*) {
  StandInNccl::The().Add(
      {"ncclBroadcast", RankOf(shadow), in, out, count, type, 0, root});
  return 0;
}
int AllGather(const void* in, void* out, size_t count, int type, void* shadow,
              void*) {
  StandInNccl::The().Add(
      {"ncclAllGather", RankOf(shadow), in, out, count, type});
  return 0;
}
int Send(const void* in, size_t count, int type, int peer, void* shadow,
         void*) {
  StandInNccl::The().Add(
      {"ncclSend", RankOf(shadow), in, nullptr, count, type, 0, peer});
  return 0;
}
int Recv(void* out, size_t count, int type, int peer, void* shadow, void*) {
  StandInNccl::The().Add(
      {"ncclRecv", RankOf(shadow), nullptr, out, count, type, 0, peer});
  return 0;
}
constexpr int kMadeOp = 100;
int MakeSum(int* op, void* scalar, int, int, void* shadow) {
  std::memcpy(&StandInNccl::The().factors[RankOf(shadow)], scalar,
              sizeof(float));
  *op = kMadeOp;
  return 0;
}
int DestroySum(int, void*) { return 0; }
int Destroy(void*) {
  ++StandInNccl::The().destroyed;
  return 0;
}
int Abort(void*) {
  ++StandInNccl::The().aborted;
  return 0;
}

template <typename T>
void Reduced(const std::vector<StandInNccl::Call>& ranks, size_t first,
             size_t count, void* to, const std::map<int, float>& factors) {
  for (size_t i = 0; i < count; ++i) {
    std::optional<T> fold;
    for (int rank = kSize - 1; rank >= 0; --rank) {  // an order of its own
      T value = static_cast<const T*>(ranks[rank].input)[first + i];
      if (ranks[rank].op == kMadeOp) value *= factors.at(rank);
      if (!fold)
        fold = value;
      else if (ranks[rank].op == kMax)
        fold = std::max(*fold, value);
      else if (ranks[rank].op == kProd)
        fold = *fold * value;
      else
        fold = *fold + value;
    }
    if (ranks[0].op == kAvg) *fold /= kSize;
    static_cast<T*>(to)[i] = *fold;
  }
}

}  // namespace

void* StandInNccl::Find(const char* name) {
  static const std::map<std::string, void*> functions = {
      {"ncclGroupStart", reinterpret_cast<void*>(Start)},
      {"ncclGroupEnd", reinterpret_cast<void*>(End)},
      {"ncclAllReduce", reinterpret_cast<void*>(AllReduce)},
      {"ncclReduceScatter", reinterpret_cast<void*>(ReduceScatter)},
      {"ncclReduce", reinterpret_cast<void*>(Reduce)},
      {"ncclBroadcast", reinterpret_cast<void*>(Broadcast)},
      {"ncclAllGather", reinterpret_cast<void*>(AllGather)},
      {"ncclSend", reinterpret_cast<void*>(Send)},
      {"ncclRecv", reinterpret_cast<void*>(Recv)},
      {"ncclRedOpCreatePreMulSum", reinterpret_cast<void*>(MakeSum)},
      {"ncclRedOpDestroy", reinterpret_cast<void*>(DestroySum)},
      {"ncclCommDestroy", reinterpret_cast<void*>(Destroy)},
      {"ncclCommAbort", reinterpret_cast<void*>(Abort)}};
  return functions.at(name);
}

void StandInNccl::Done(const Call& call, size_t bytes) {
  if (call.name == fault && at < bytes)
    static_cast<unsigned char*>(call.output)[at] ^= 0x40;
}

void StandInNccl::Collective(const std::vector<Call>& ranks) {
  const std::string& name = ranks[0].name;
  const size_t count = ranks[0].count, bytes = 4 * count;
  std::vector<std::vector<std::byte>> outputs(kSize);
  for (int rank = 0; rank < kSize; ++rank) {
    std::vector<std::byte>& output = outputs[rank];
    output.resize(bytes);
    if (name == "ncclBroadcast") {
      std::memcpy(output.data(), ranks[ranks[0].root].input, bytes);
    } else if (name == "ncclAllGather") {
      output.clear();
      for (const Call& call : ranks) {
        const auto* from = static_cast<const std::byte*>(call.input);
        output.insert(output.end(), from, from + bytes);
      }
    } else {
      const size_t first = name == "ncclReduceScatter" ? rank * count : 0;
      if (ranks[0].type == kNcclFloat32)
        Reduced<float>(ranks, first, count, output.data(), factors);
      else
        Reduced<int>(ranks, first, count, output.data(), factors);
    }
  }
  for (int rank = 0; rank < kSize; ++rank) {
    if (name == "ncclReduce" && rank != ranks[0].root) continue;
    std::memcpy(ranks[rank].output, outputs[rank].data(), outputs[rank].size());
    Done(ranks[rank], outputs[rank].size());
  }
}

bool StandInNccl::EndGroup() {
  const bool runs = wait();
  if (runs) Run();
  calls_.clear();
  return runs;
}

void StandInNccl::Run() {
  std::vector<std::deque<Call>> collectives(kSize);
  std::map<std::pair<int, int>, std::deque<Call>> sends;
  for (const Call& call : calls_) {
    ++counts[call.name];
    if (call.name == "ncclSend")
      sends[{call.rank, call.root}].push_back(call);
    else if (call.name != "ncclRecv")
      collectives[call.rank].push_back(call);
  }
  for (const Call& call : calls_) {
    if (call.name != "ncclRecv") continue;
    std::deque<Call>& from = sends.at({call.root, call.rank});
    ASSERT_EQ(from.front().count, call.count);
    const size_t bytes = call.count * (call.type == kNcclUint8 ? 1 : 4);
    std::memcpy(call.output, from.front().input, bytes);
    from.pop_front();
    Done(call, bytes);
  }
  while (!collectives[0].empty()) {
    std::vector<Call> ranks;
    for (std::deque<Call>& of_rank : collectives) {
      ASSERT_FALSE(of_rank.empty());
      ranks.push_back(of_rank.front());
      of_rank.pop_front();
      ASSERT_EQ(ranks.back().name, ranks[0].name);
    }
    Collective(ranks);
  }
}

}  // namespace jax_cxl::nccl
