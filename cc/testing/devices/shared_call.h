#ifndef JAX_CXL_TESTING_DEVICES_SHARED_CALL_H_
#define JAX_CXL_TESTING_DEVICES_SHARED_CALL_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"
#include "cc/testing/soak/soak_call.h"

namespace jax_cxl::comm::soak {

inline constexpr uint32_t kModelBlocks = 4;

// Settings that all ranks of a world share.
struct ModelSetting {
  int ranks;
  int devices;
  int threads;  // of each relay
  bool writes_memory;
  bool counted;  // the devices number the calls (DeviceJournal)
  uint64_t first_flagged_round;
  plan::Geometry slots;
  plan::Geometry kernels;
  plan::Stripes stripes;

  explicit ModelSetting(Random& random)
      : ranks(static_cast<int>(Pick(random, 2, 4))),
        devices(random() % 4 == 0 ? 3 : 1),
        threads(static_cast<int>(Pick(random, 1, 3))),
        writes_memory(random() % 3 == 0),
        counted(random() % 3 == 0),
        // Flags are round numbers of 32 bits. In half of the worlds they begin
        // at 0. In the others they begin near their largest value, so that they
        // start again at 0 after some calls.
        first_flagged_round(
            random() % 2 == 0 ? 0 : UINT32_MAX - Pick(random, 2, 12)) {
    slots.num_slots = static_cast<int>(Pick(random, 3, 6));
    slots.num_devices = devices;
    slots.slot_bytes = uint64_t{4096} << Pick(random, 0, 2);
    slots.all_read_bytes = random() % 2 == 0 ? 0 : 8192;
    slots.min_chunk_bytes = random() % 2 == 0 ? 0 : 1024;
    stripes = plan::GpuStripes(slots.slot_bytes, devices, ranks, kModelBlocks);
    slots.part_alignment = stripes.period();
    kernels = slots;
    if (stripes.slot_step > 0) kernels.device_parts = kModelBlocks;
  }
};

// One call, with the choices that are the same for all ranks.
struct SharedCall {
  SoakCall call;
  bool by_copies;
  bool flagged;  // if its plan allows it
  uint32_t num_words;
  plan::Geometry geometry;
  bool follows_on;  // it is in the series of the previous call

  // `last` is the previous call, or null.
  SharedCall(Random& random, const ModelSetting& setting, uint64_t number,
             const SharedCall* last)
      : call(random, Everyone(setting.ranks), number, 40'000, RandomOp(random)),
        by_copies(!setting.counted && random() % 2 == 0),
        flagged(!setting.counted && !by_copies && random() % 2 == 0),
        num_words(by_copies         ? Pick(random, 1, 2)
                  : setting.counted ? kModelBlocks
                                    : 1u << Pick(random, 0, 2)),
        geometry(by_copies ? setting.slots : setting.kernels) {
    if (by_copies && random() % 2 == 0)
      geometry.num_slots = std::max(geometry.num_slots - 1, 2);
    if (!by_copies && setting.stripes.slot_step > 0) num_words = kModelBlocks;
    follows_on = last != nullptr && last->by_copies && random() % 3 > 0;
    if (!follows_on) return;
    by_copies = true;
    flagged = false;
    num_words = last->num_words;
    geometry = last->geometry;
  }

  // Never returns an operation that moves rows: its plan moves all rows, and
  // only the real executors know which rows to leave out.
  static plan::Op RandomOp(Random& random) {
    while (true) {
      const auto op = static_cast<plan::Op>(Pick(random, 0, plan::kNumOps - 1));
      if (plan::TraitsOf(op).output != plan::Blocks::kRows) return op;
    }
  }

  static std::vector<int32_t> Everyone(int ranks) {
    std::vector<int32_t> everyone(ranks);
    std::iota(everyone.begin(), everyone.end(), 0);
    return everyone;
  }
};

}  // namespace jax_cxl::comm::soak

#endif  // JAX_CXL_TESTING_DEVICES_SHARED_CALL_H_
