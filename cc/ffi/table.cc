#include "cc/ffi/table.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "cc/engine/cpu/huge_pages.h"
#include "cc/ffi/errors.h"
#include "cc/ffi/handlers.h"
#include "cc/table/registry.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// Work in chunks, which the threads of XLA's pool and the calling thread take
// one after another. The calling thread never waits for a thread that has not
// started.
class Chunks {
 public:
  using Run = std::function<Status(uint64_t chunk)>;

  static Status RunAll(xffi::ThreadPool& pool, uint64_t count, Run run) {
    auto chunks = std::make_shared<Chunks>(count, std::move(run));
    const auto threads = static_cast<uint64_t>(
        std::max<int64_t>(count > 1 ? pool.num_threads() : 1, 1));
    for (uint64_t i = 1; i < std::min(threads, count); ++i)
      pool.Schedule([chunks] { chunks->Work(); });
    chunks->Work();
    return chunks->Wait();
  }

  Chunks(uint64_t count, Run run) : count_(count), run_(std::move(run)) {}

 private:
  void Work() {
    for (;;) {
      const uint64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= count_) return;
      const Status status = run_(chunk);
      std::lock_guard lock(mutex_);
      if (!status.ok() && chunk < failed_) {
        failed_ = chunk;
        status_ = status;
      }
      if (++done_ == count_) all_done_.notify_one();
    }
  }

  // Returns the status of the first chunk that has failed.
  Status Wait() {
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [&] { return done_ == count_; });
    return status_;
  }

  const uint64_t count_;
  const Run run_;
  std::atomic<uint64_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable all_done_;
  uint64_t done_ = 0;
  uint64_t failed_ = UINT64_MAX;
  Status status_;
};

Status TakeAll(xffi::ThreadPool& pool, const TableCall& call) {
  const table::Column& column = *call.column;
  std::shared_lock in_use(column.in_use);
  if (column.closed)
    return Error(Code::kFailedPrecondition, "take: the table was closed");
  const uint64_t count = call.request.ids.count;
  const uint64_t each = table::IdsOfChunk(column);
  cpu::PreferHugePages(call.request.output, count * column.row_bytes);
  return Chunks::RunAll(pool, (count + each - 1) / each, [&](uint64_t chunk) {
    const uint64_t begin = chunk * each;
    return table::TakeRows(column, call.request, begin,
                           std::min(begin + each, count));
  });
}

xffi::Error Take(xffi::ThreadPool pool, int64_t table, int32_t column,
                 int32_t mode, xffi::Span<const uint8_t> fill,
                 xffi::AnyBuffer ids, xffi::Result<xffi::AnyBuffer> output) {
  const Result<TableCall> call =
      TableCall::Of({table, column, mode, fill}, ids, *output);
  if (!call.ok()) return ToFfiError(call.status());
  const Status status = TakeAll(pool, *call);
  return status.ok() ? xffi::Error::Success() : ToFfiError(status);
}

}  // namespace

Result<TableCall> TableCall::Of(const TableAttributes& attributes,
                                const xffi::AnyBuffer& ids,
                                xffi::AnyBuffer& output) {
  TableCall call;
  call.column =
      table::Registry::Get().Find({attributes.table, attributes.column});
  if (call.column == nullptr)
    return Error(Code::kFailedPrecondition,
                 "take: this process has not opened the table of the program, "
                 "or has closed it");
  const xffi::DataType type = ids.element_type();
  const bool wide = type == xffi::DataType::S64;
  const uint64_t count = ids.element_count();
  const uint64_t element = attributes.fill.size();
  if (!(wide || type == xffi::DataType::S32) || element == 0 ||
      attributes.mode < 0 || attributes.mode > 2 ||
      call.column->row_bytes % element != 0 ||
      output.size_bytes() != count * call.column->row_bytes)
    return Error(Code::kInternal,
                 "take got other buffers than it was lowered for");
  call.request.ids = {.data = ids.untyped_data(), .count = count, .wide = wide};
  call.request.mode = static_cast<table::Mode>(attributes.mode);
  call.request.fill =
      std::as_bytes(std::span(attributes.fill.begin(), element));
  call.request.output = static_cast<std::byte*>(output.untyped_data());
  return call;
}

}  // namespace jax_cxl::ffi

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_table, jax_cxl::ffi::Take,
    jax_cxl::ffi::BindTable(xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>()));
