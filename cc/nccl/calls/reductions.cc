#include "cc/nccl/calls/reductions.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#include "cc/nccl/calls/operation.h"

namespace jax_cxl::nccl {
namespace {

constexpr char kCreate[] = "ncclRedOpCreatePreMulSum";

// The numbers below are for NCCL's own reductions.
constexpr int kFirstNumber = 1 << 16;

// A freed number is used again only after all other numbers.
int NextNumber() {
  static std::atomic<uint32_t> count = 0;
  return kFirstNumber + static_cast<int>(count++ % (kNoOp - kFirstNumber));
}

Status NoReduction(std::string_view function, int number) {
  return Error(Code::kInvalidArgument, function,
               ": this communicator has no reduction ", number,
               ". Pass one of NCCL's own, or one that ", kCreate,
               " made for this communicator and ncclRedOpDestroy has not "
               "destroyed");
}

}  // namespace

Result<int> Reductions::Add(const void* scalar, int type, int residence) {
  CXL_RETURN_IF_ERROR(CheckType(kCreate, type));
  if (residence != kScalarDevice && residence != kScalarHostImmediate)
    return Error(Code::kInvalidArgument, kCreate,
                 ": there is no scalar residence ", residence,
                 "; pass ncclScalarDevice (", kScalarDevice,
                 ") or ncclScalarHostImmediate (", kScalarHostImmediate, ")");
  if (scalar == nullptr)
    return Error(Code::kInvalidArgument, kCreate,
                 ": the scalar is null; pass the address of the factor");
  PremultipliedSum sum = {type, {}};
  if (residence == kScalarDevice)
    sum.factor.at = scalar;
  else
    std::memcpy(&sum.factor.bits, scalar, DTypeBytes(kTypes[type]));
  std::lock_guard lock(mutex_);
  for (;;) {
    const auto [place, made] = sums_.emplace(NextNumber(), sum);
    if (made) return place->first;
  }
}

Status Reductions::Remove(int number) {
  std::lock_guard lock(mutex_);
  if (sums_.erase(number) == 0) return NoReduction("ncclRedOpDestroy", number);
  return OkStatus();
}

Result<comm::Factor> Reductions::Find(std::string_view function, int number,
                                      int type) const {
  std::lock_guard lock(mutex_);
  const auto found = sums_.find(number);
  if (found == sums_.end()) return NoReduction(function, number);
  const PremultipliedSum& sum = found->second;
  if (sum.type != type)
    return Error(Code::kInvalidArgument, function, ": reduction ", number,
                 " was made for ", DTypeName(kTypes[sum.type]), ", not for ",
                 DTypeName(kTypes[type]),
                 "; make a reduction for each data type");
  return sum.factor;
}

}  // namespace jax_cxl::nccl
