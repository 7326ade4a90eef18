#include "cc/base/dtype.h"

namespace jax_cxl {
namespace {

struct DTypeInfo {
  std::string_view name;
  int bytes;
};

constexpr DTypeInfo kDTypes[kNumDTypes] = {
    {"bool", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex64", 8},
    {"complex128", 16},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"float8_e4m3b11fnuz", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1},
    {"float8_e4m3", 1},
    {"float8_e3m4", 1},
    {"float8_e8m0fnu", 1},
};

constexpr std::string_view kReduceOps[kNumReduceOps] = {"sum", "prod", "min",
                                                        "max", "and",  "or"};

}  // namespace

int DTypeBytes(DType dtype) {
  auto index = static_cast<int>(dtype);
  return index < kNumDTypes ? kDTypes[index].bytes : 0;
}

std::string_view DTypeName(DType dtype) {
  auto index = static_cast<int>(dtype);
  return index < kNumDTypes ? kDTypes[index].name : "unknown dtype";
}

std::string_view ReduceOpName(ReduceOp op) {
  auto index = static_cast<int>(op);
  return index < kNumReduceOps ? kReduceOps[index] : "unknown reduction";
}

}  // namespace jax_cxl
