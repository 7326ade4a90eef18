#ifndef JAX_CXL_STORE_TABLE_REGISTRY_H_
#define JAX_CXL_STORE_TABLE_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/store/table/column.h"

namespace jax_cxl::table {

// The open tables of this process. A program names a column by the identity of
// the table and the number of the column in the table. The identity is the same
// in all processes.
//
// Thread-safe.
class Registry {
 public:
  using Name = std::pair<int64_t, int32_t>;

  static Registry& Get();

  // A process may open a table several times. Each time, the table's columns
  // are added again.
  void Add(const Name& name, std::shared_ptr<Column> column);
  // Removes a column that Add has added, and waits until no program takes rows
  // of it. Afterwards the memory of the column may be unmapped.
  void Remove(const Name& name, const Column* column);
  // Returns the column of the latest opening, or null if the table is not open.
  std::shared_ptr<const Column> Find(const Name& name) const;

  // Returns the word that counts the rows that this process takes of a table.
  // The word is never destroyed.
  std::atomic<uint64_t>* Taken(int64_t table);

 private:
  mutable std::mutex mutex_;
  std::map<Name, std::vector<std::shared_ptr<Column>>> columns_;
  std::map<int64_t, std::atomic<uint64_t>> taken_;
};

}  // namespace jax_cxl::table

#endif  // JAX_CXL_STORE_TABLE_REGISTRY_H_
