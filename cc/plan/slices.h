#ifndef JAX_CXL_PLAN_SLICES_H_
#define JAX_CXL_PLAN_SLICES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cc/base/status.h"
#include "cc/plan/plan.h"

// The slices of a ragged_all_to_all. Each rank has a table of four columns,
// which lie one after another: input_offsets, send_sizes, output_offsets (in
// the receiver's output) and recv_sizes. The entries of all columns count rows.
// A column has num_ranks * slices entries: `slices` for each rank.
//
// A call can be a batch of exchanges, which are called its elements. Operand
// and output then have the rows of all elements of the batch, one after
// another. Entry k of a column belongs to element k % elements, and an offset
// counts rows from the first row of that element.
//
// The host and the devices use the same functions, so that they find the same
// errors.
namespace jax_cxl::plan {

// The tables of all ranks, one after another. `Entry` is a type of signed
// integers.
template <typename Entry>
struct SliceTables {
  const Entry* tables;
  uint64_t ranks;
  Rows rows;

  constexpr uint64_t slices() const { return rows.slices; }
  constexpr uint64_t entries() const { return ranks * slices(); }
  constexpr uint64_t Element(uint64_t k) const { return k % rows.elements; }
  // The number of rows that one element of the batch has in the operand and in
  // the output.
  constexpr uint64_t operand_rows() const { return rows.table / rows.elements; }
  constexpr uint64_t output_rows() const { return rows.taken / rows.elements; }

  // Return the first row of slice `k` that `rank` sends. InputRow is the row in
  // the operand of `rank`, and OutputRow the row in the output of the receiver.
  // Rows are counted over all elements of the batch. Requires that CheckSlice
  // finds no fault in this slice.
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

// Returns the entries of `slices` as 8-byte integers. `slices` is a table in
// the host's memory, with entries of `entry_bytes` bytes.
std::vector<int64_t> WideSlices(std::span<const std::byte> slices,
                                uint32_t entry_bytes);

// An error in the tables of slices, or none.
struct SliceFault {
  enum Kind : uint32_t {
    kNone = 0,
    kInput,    // slice `entry` of `rank` is not within its operand
    kOutput,   // the slice is not within the output of its receiver
    kSizes,    // the receiver of the slice expects another size
    kOverlap,  // two slices that `receiver` gets overlap
  };
  uint32_t kind = kNone;
  uint32_t rank = 0;
  uint64_t entry = 0;  // number of the entry within its element
  int64_t offset = 0;  // of the slice
  int64_t size = 0;
  uint64_t rows = 0;  // kInput, kOutput: of the buffer
  // For kSizes, `other` is the receiver. Its entry `other_entry` expects
  // `other_size` rows. For kOverlap, `rank` sends the first of the two slices,
  // and `other` sends the second, which `other_entry`, `other_offset` and
  // `other_size` describe. `receiver` gets both.
  uint32_t other = 0;
  uint32_t receiver = 0;
  uint64_t other_entry = 0;
  int64_t other_offset = 0;
  int64_t other_size = 0;
  // The element of the batch to which the slices belong, and the number of
  // elements.
  uint64_t element = 0;
  uint64_t elements = 1;
};

constexpr bool LeavesRows(int64_t offset, int64_t size, uint64_t rows) {
  return offset < 0 || size < 0 || static_cast<uint64_t>(offset) > rows ||
         static_cast<uint64_t>(size) > rows - offset;
}

// Checks slice `k` of the slices that `rank` sends: its place in the operand,
// its place in the output, and the size that the receiver expects.
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
// `a` and `b` are numbers of slices. They count the slices that `receiver`
// gets, first those from rank 0, then those from rank 1, and so on. Requires
// that CheckSlice has found no fault.
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

// Checks all tables and returns the first error, in the order in which devices
// check them.
Status CheckSlices(const SliceTables<int64_t>& tables);

// Returns an error kInvalidArgument, whose message names the rank and the entry
// of the fault. Returns OK for a fault of kind kNone.
Status SliceError(const SliceFault& fault);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_SLICES_H_
