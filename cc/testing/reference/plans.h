#ifndef JAX_CXL_TESTING_REFERENCE_PLANS_H_
#define JAX_CXL_TESTING_REFERENCE_PLANS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "cc/plan/plan.h"
#include "cc/testing/verify/verify.h"

// Code that the tests of cc/plan share.
namespace jax_cxl::plan {

inline std::vector<Op> AllOps() {
  std::vector<Op> ops;
  for (int op = 0; op < kNumOps; ++op) ops.push_back(static_cast<Op>(op));
  return ops;
}

// Returns the sources of a permute. With pattern 0 the ranks form a ring, with
// pattern 1 each rank is its own source, and with pattern 2 no rank has a
// source. Pattern 3 reverses the order of the ranks, except that every third
// rank has no source. With an odd number of ranks, the middle rank sends to
// itself.
inline std::vector<int32_t> Sources(int num_ranks, int pattern) {
  std::vector<int32_t> sources(num_ranks, -1);
  for (int r = 0; r < num_ranks; ++r) {
    if (pattern == 0) sources[r] = (r + num_ranks - 1) % num_ranks;
    if (pattern == 1) sources[r] = r;
    if (pattern == 3 && r % 3 != 1) sources[r] = num_ranks - 1 - r;
  }
  return sources;
}

inline Request MakeRequest(Op op, int num_ranks, uint64_t count,
                           uint32_t element_bytes = 4, int root = 0) {
  Request request;
  request.op = op;
  request.num_ranks = num_ranks;
  request.count = op == Op::kBarrier ? 0 : count;
  request.element_bytes = element_bytes;
  request.root = root;
  if (op == Op::kPermute) request.sources = Sources(num_ranks, 0);
  // Each row has one element, unless that would make too many rows. Then one
  // row has all elements. Each rank takes the rows of all ranks, as it would
  // without cpu::TakenRows.
  if (MovesRows(op)) {
    const bool few = count < (uint64_t{1} << 31) / num_ranks;
    const uint64_t table = few ? count : 1;
    request.rows = {table, num_ranks * table};
  }
  if (op == Op::kRaggedAllToAll) request.rows.slices = 2;
  return request;
}

inline std::string Describe(const Request& request, const Geometry& geometry,
                            const Setting& setting = {}) {
  std::ostringstream text;
  text << OpName(request.op) << " of " << request.count << " x "
       << request.element_bytes << " bytes, " << request.num_ranks
       << " ranks, root " << request.root << ", " << geometry.num_slots
       << " slots of " << geometry.slot_bytes << ", all_read_bytes "
       << geometry.all_read_bytes << ", round " << setting.start_round;
  return text.str();
}

// Makes and verifies plans for all ranks. If the plans are wrong, fails the
// test and returns an empty Traffic.
inline Traffic ExpectVerified(const Request& request, const Geometry& geometry,
                              const Setting& setting = {}) {
  Result<std::vector<Plan>> plans = MakePlans(request, geometry);
  if (!plans.ok()) {
    ADD_FAILURE() << Describe(request, geometry) << ": "
                  << plans.status().message();
    return {};
  }
  Result<Traffic> traffic = Verify(request, geometry, *plans, setting);
  if (!traffic.ok()) {
    ADD_FAILURE() << Describe(request, geometry, setting) << ": "
                  << traffic.status().message();
    return {};
  }
  return *std::move(traffic);
}

// Checks that no device has more than `slack` times its even share of the bytes
// written and read.
inline void ExpectEvenDevices(const Traffic& traffic, double slack,
                              const std::string& what) {
  PoolBytes sum, most;
  for (const PoolBytes& device : traffic.by_device) {
    sum.written += device.written;
    sum.read += device.read;
    most.written = std::max(most.written, device.written);
    most.read = std::max(most.read, device.read);
  }
  const size_t devices = traffic.by_device.size();
  EXPECT_LE(most.written * devices, sum.written * slack) << what;
  EXPECT_LE(most.read * devices, sum.read * slack) << what;
}

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_TESTING_REFERENCE_PLANS_H_
