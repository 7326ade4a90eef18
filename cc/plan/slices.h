#ifndef JAX_CXL_PLAN_SLICES_H_
#define JAX_CXL_PLAN_SLICES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cc/base/status.h"
#include "cc/plan/plan.h"

// The slices of a ragged_all_to_all. Each rank brings a table of four columns,
// one after another: input_offsets, send_sizes, output_offsets (in the
// receiver's output) and recv_sizes, in rows. A column has num_ranks * slices
// entries: `slices` for each peer.
//
// A call can be a batch of exchanges. Operand and output then have the rows of
// all elements of the batch, one after another. Entry k of a column belongs to
// element k % elements, and counts rows from the first row of that element.
//
// Host and devices share these functions, so that both find the same errors.
namespace jax_cxl::plan {

// The tables of all ranks, one after another. `Entry` is a signed integer.
template <typename Entry>
struct SliceTables {
  const Entry* tables;
  uint64_t ranks;
  Rows rows;

  constexpr uint64_t slices() const { return rows.slices; }
  constexpr uint64_t entries() const { return ranks * slices(); }
  constexpr uint64_t Element(uint64_t k) const { return k % rows.elements; }
  // Rows of one element of the batch.
  constexpr uint64_t operand_rows() const { return rows.table / rows.elements; }
  constexpr uint64_t output_rows() const { return rows.taken / rows.elements; }

  // Row numbers, counted over all elements of the batch. Requires that the
  // slice lies within its element: CheckSlice finds no fault.
  constexpr uint64_t InputRow(uint64_t rank, uint64_t k) const {
    return Element(k) * operand_rows() + At(rank, 0, k);
  }
  constexpr uint64_t OutputRow(uint64_t rank, uint64_t k) const {
    return Element(k) * output_rows() + At(rank, 2, k);
  }

  constexpr int64_t InputOffset(uint64_t rank, uint64_t k) const {
    return At(rank, 0, k);
  }
  constexpr int64_t SendSize(uint64_t rank, uint64_t k) const {
    return At(rank, 1, k);
  }
  constexpr int64_t OutputOffset(uint64_t rank, uint64_t k) const {
    return At(rank, 2, k);
  }
  constexpr int64_t RecvSize(uint64_t rank, uint64_t k) const {
    return At(rank, 3, k);
  }
  constexpr int64_t At(uint64_t rank, uint64_t column, uint64_t k) const {
    return tables[(rank * 4 + column) * entries() + k];
  }
};

// Returns the number of entries of a rank's table.
constexpr uint64_t SliceEntries(const Request& request) {
  return 4 * request.rows.slices * request.num_ranks;
}

// Returns a table as 8-byte integers. It must be in the memory of
// the host.
std::vector<int64_t> WideSlices(std::span<const std::byte> slices,
                                uint32_t entry_bytes);

// An error in the tables.
struct SliceFault {
  enum Kind : uint32_t {
    kNone = 0,
    kInput,    // slice `entry` of `rank` is not within its operand
    kOutput,   // it is not within the output of its receiver
    kSizes,    // its receiver expects another size
    kOverlap,  // two slices that `rank` receives have a place in common
  };
  uint32_t kind = kNone;
  uint32_t rank = 0;
  uint64_t entry = 0;  // as the element's own table counts entries
  int64_t offset = 0;  // of the slice
  int64_t size = 0;
  uint64_t rows = 0;  // kInput, kOutput: of the buffer
  // For kSizes, `other` is the receiver, and `other_entry` and `other_size` are
  // its entry and size. For kOverlap, `rank` and `other` are the senders of the
  // two slices, and `receiver` gets both.
  uint32_t other = 0;
  uint32_t receiver = 0;
  uint64_t other_entry = 0;
  int64_t other_offset = 0;
  int64_t other_size = 0;
  // In a batch: the element.
  uint64_t element = 0;
  uint64_t elements = 1;
};

constexpr bool LeavesRows(int64_t offset, int64_t size, uint64_t rows) {
  return offset < 0 || size < 0 || static_cast<uint64_t>(offset) > rows ||
         static_cast<uint64_t>(size) > rows - offset;
}

// Checks slice `k` of the slices that `rank` sends.
template <typename Entry>
constexpr SliceFault CheckSlice(const SliceTables<Entry>& tables, uint64_t rank,
                                uint64_t k) {
  SliceFault fault;
  fault.rank = static_cast<uint32_t>(rank);
  fault.element = tables.Element(k);
  fault.elements = tables.rows.elements;
  fault.entry = k / fault.elements;
  fault.size = tables.SendSize(rank, k);
  fault.offset = tables.InputOffset(rank, k);
  fault.rows = tables.operand_rows();
  if (LeavesRows(fault.offset, fault.size, fault.rows)) {
    fault.kind = SliceFault::kInput;
    return fault;
  }
  fault.offset = tables.OutputOffset(rank, k);
  fault.rows = tables.output_rows();
  if (LeavesRows(fault.offset, fault.size, fault.rows)) {
    fault.kind = SliceFault::kOutput;
    return fault;
  }
  const uint64_t receiver = k / tables.slices();
  const uint64_t other = rank * tables.slices() + k % tables.slices();
  fault.other = static_cast<uint32_t>(receiver);
  fault.other_entry = other / fault.elements;
  fault.other_size = tables.RecvSize(receiver, other);
  if (fault.other_size != fault.size) fault.kind = SliceFault::kSizes;
  return fault;
}

// Checks that two of the slices that `receiver` gets do not overlap in its
// output. If they did, the slice that arrives later would overwrite the other.
// `a` and `b` count the slices, first those of rank 0. Requires that CheckSlice
// has found no fault.
template <typename Entry>
constexpr SliceFault CheckPair(const SliceTables<Entry>& tables,
                               uint64_t receiver, uint64_t a, uint64_t b) {
  SliceFault fault;
  fault.receiver = static_cast<uint32_t>(receiver);
  fault.rank = static_cast<uint32_t>(a / tables.slices());
  fault.other = static_cast<uint32_t>(b / tables.slices());
  const uint64_t k = receiver * tables.slices() + a % tables.slices();
  const uint64_t other = receiver * tables.slices() + b % tables.slices();
  fault.element = tables.Element(k);
  fault.elements = tables.rows.elements;
  fault.entry = k / fault.elements;
  fault.other_entry = other / fault.elements;
  fault.offset = tables.OutputOffset(fault.rank, k);
  fault.size = tables.SendSize(fault.rank, k);
  fault.other_offset = tables.OutputOffset(fault.other, other);
  fault.other_size = tables.SendSize(fault.other, other);
  if (tables.Element(other) == fault.element && fault.size > 0 &&
      fault.other_size > 0 &&
      fault.offset < fault.other_offset + fault.other_size &&
      fault.other_offset < fault.offset + fault.size)
    fault.kind = SliceFault::kOverlap;
  return fault;
}

// Checks all tables, in the order in which devices do.
Status CheckSlices(const SliceTables<int64_t>& tables);

// Returns kInvalidArgument, with a message that names rank and entry; OK if
// there is no fault.
Status SliceError(const SliceFault& fault);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_SLICES_H_
