#include "cc/ffi/table.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
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

// A call in chunks, which threads of XLA's pool take one after another. XLA
// goes on meanwhile.
class Chunks {
 public:
  static xffi::Future Run(xffi::ThreadPool& pool, TableCall call) {
    xffi::Promise promise;
    xffi::Future future(promise);
    auto chunks = std::make_shared<Chunks>(std::move(call), std::move(promise));
    const auto threads = std::min<uint64_t>(
        std::max<int64_t>(pool.num_threads(), 1), chunks->count_);
    // One chunk is copied before another thread would have started.
    if (chunks->count_ == 1)
      chunks->Work();
    else
      for (uint64_t i = 0; i < threads; ++i)
        pool.Schedule([chunks] { chunks->Work(); });
    return future;
  }

  Chunks(TableCall call, xffi::Promise promise)
      : call_(std::move(call)),
        promise_(std::move(promise)),
        each_(table::IdsOfChunk(*call_.column)),
        count_(std::max<uint64_t>((call_.request.ids.count + each_ - 1) / each_,
                                  1)) {
    call_.column->calls.fetch_add(1);
    call_.column->taken->fetch_add(call_.request.ids.count);
  }

 private:
  void Work() {
    for (;;) {
      const uint64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= count_) return;
      const Status status = Take(chunk);
      std::unique_lock lock(mutex_);
      if (!status.ok() && chunk < failed_) {
        failed_ = chunk;
        status_ = status;
      }
      if (++done_ < count_) continue;
      lock.unlock();
      call_.column->calls.fetch_sub(1);
      call_.column->calls.notify_all();
      // The status is that of the first chunk that has failed.
      if (status_.ok())
        promise_.SetAvailable();
      else
        promise_.SetError(ToFfiError(status_));
    }
  }

  Status Take(uint64_t chunk) {
    const table::Column& column = *call_.column;
    const uint64_t begin = chunk * each_;
    const uint64_t end = std::min(begin + each_, call_.request.ids.count);
    std::shared_lock in_use(column.in_use);
    if (column.closed)
      return Error(Code::kFailedPrecondition, "take: the table was closed");
    return table::TakeRows(column, call_.request, begin, end,
                           column.CacheFor(0, end - begin));
  }

  const TableCall call_;
  xffi::Promise promise_;
  const uint64_t each_;
  const uint64_t count_;
  std::atomic<uint64_t> next_ = 0;
  std::mutex mutex_;
  uint64_t done_ = 0;
  uint64_t failed_ = UINT64_MAX;
  Status status_;
};

xffi::Future Take(xffi::ThreadPool pool, int64_t table, int32_t column,
                  int32_t mode, xffi::Span<const uint8_t> fill,
                  xffi::AnyBuffer ids, xffi::Result<xffi::AnyBuffer> output) {
  Result<TableCall> call =
      TableCall::Of({table, column, mode, fill}, ids, *output);
  if (!call.ok()) {
    xffi::Promise promise;
    xffi::Future future(promise);
    promise.SetError(ToFfiError(call.status()));
    return future;
  }
  cpu::PreferHugePages(call->request.output, output->size_bytes());
  return Chunks::Run(pool, *std::move(call));
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
      call.request.fill.size() % element != 0 || attributes.mode < 0 ||
      attributes.mode > 2 || call.column->row_bytes % element != 0 ||
      output.size_bytes() != count * call.column->row_bytes)
    return Error(Code::kInternal,
                 "take got other buffers than it was lowered for");
  call.request.ids = {.data = ids.untyped_data(), .count = count, .wide = wide};
  call.request.mode = static_cast<table::Mode>(attributes.mode);
  for (size_t at = 0; at < call.request.fill.size(); at += element)
    std::memcpy(call.request.fill.data() + at, attributes.fill.begin(),
                element);
  call.request.output = static_cast<std::byte*>(output.untyped_data());
  return call;
}

}  // namespace jax_cxl::ffi

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_table, jax_cxl::ffi::Take,
    jax_cxl::ffi::BindTable(xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>()));
