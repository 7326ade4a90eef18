#include "cc/comm/call/tuning.h"

#include "cc/plan/plan.h"
#include "cc/pool/layout/layout.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kMaxSlotBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxInlineBytes = uint64_t{32} << 10;
constexpr uint64_t kMaxFlushThreads = 16;
constexpr uint64_t kMinFlushPieceBytes = uint64_t{4} << 10;

Status CheckRange(const char* name, uint64_t value, uint64_t least,
                  uint64_t most, uint64_t unit) {
  if (value >= least && value <= most && value % unit == 0) return OkStatus();
  return Error(Code::kInvalidArgument, name, " is ", value,
               ", not a multiple of ", unit, " from ", least, " to ", most);
}

}  // namespace

Status CheckTuning(const Tuning& tuning) {
  CXL_RETURN_IF_ERROR(CheckRange("slot_bytes", tuning.slot_bytes, 4096,
                                 kMaxSlotBytes, plan::kSlotAlignment));
  CXL_RETURN_IF_ERROR(
      CheckRange("num_slots", tuning.num_slots, 2, pool::kMaxSlots, 1));
  CXL_RETURN_IF_ERROR(CheckRange("inline_bytes", tuning.inline_bytes,
                                 plan::kSlotAlignment, kMaxInlineBytes,
                                 plan::kSlotAlignment));
  CXL_RETURN_IF_ERROR(CheckRange("flush_threads", tuning.flush_threads, 0,
                                 kMaxFlushThreads, 1));
  return CheckRange("flush_piece_bytes", tuning.flush_piece_bytes,
                    kMinFlushPieceBytes, kMaxSlotBytes, plan::kSlotAlignment);
}

}  // namespace jax_cxl::comm
