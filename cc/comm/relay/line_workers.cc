#include "cc/comm/relay/line_workers.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "cc/base/idle.h"
#include "cc/comm/call/backoff.h"

namespace jax_cxl::comm {
namespace {

// The thread that calls Start does shorter work itself.
constexpr size_t kShortBytes = size_t{64} << 10;
// The largest number of pieces of one piece of work. Longer work has larger
// pieces, so that threads lose little time between two pieces.
constexpr size_t kMostPieces = 16;

// Cuts the parts so that none is longer than a piece.
std::vector<pool::Part> Cut(std::vector<pool::Part> parts, size_t piece_bytes) {
  std::vector<pool::Part> cut;
  for (pool::Part part : parts) {
    for (; part.bytes > piece_bytes; part.bytes -= piece_bytes) {
      cut.push_back({part.begin, piece_bytes});
      part.begin = static_cast<const std::byte*>(part.begin) + piece_bytes;
    }
    cut.push_back(part);
  }
  return cut;
}

class SpinLock {
 public:
  explicit SpinLock(std::atomic_flag& flag) : flag_(flag) {
    Backoff backoff;
    while (flag_.test_and_set(std::memory_order_acquire)) backoff.Pause();
  }
  ~SpinLock() { flag_.clear(std::memory_order_release); }
  SpinLock(const SpinLock&) = delete;

 private:
  std::atomic_flag& flag_;
};

}  // namespace

LineWorkers::LineWorkers(const pool::Coherence& coherence, int helpers,
                         size_t piece_bytes)
    : coherence_(coherence), piece_bytes_(piece_bytes) {
  for (int i = 0; i < helpers; ++i) threads_.emplace_back([this] { Run(); });
}

LineWorkers::~LineWorkers() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<LineWork> LineWorkers::Start(std::vector<pool::Part> parts,
                                             bool drop) {
  size_t bytes = 0;
  for (const pool::Part& part : parts) bytes += part.bytes;
  auto work = std::make_shared<LineWork>();
  work->drop = drop;
  const bool is_short = bytes <= kShortBytes;
  const size_t piece_bytes = std::max(piece_bytes_, bytes / kMostPieces);
  work->parts =
      is_short ? std::move(parts) : Cut(std::move(parts), piece_bytes);
  const size_t size = work->parts.size();
  if (size == 0) return work;
  if (is_short) {
    work->left = 1;
    Execute({work, 0, size});
    return work;
  }
  std::vector<Piece> made;
  for (size_t first = 0; first < size;) {
    size_t last = first;
    for (size_t piece = 0; last < size && piece < piece_bytes; ++last)
      piece += work->parts[last].bytes;
    made.push_back({work, first, last});
    first = last;
  }
  work->left = static_cast<int>(made.size());
  {
    const SpinLock lock(locked_);
    waiting_.fetch_add(made.size());
    std::ranges::move(made, std::back_inserter(pieces_));
  }
  // Wakes one thread only: waking a thread may take as long as several pieces.
  if (sleeping_.load() > 0) {
    {
      std::lock_guard lock(mutex_);
    }
    wake_.notify_one();
  }
  return work;
}

void LineWorkers::Execute(const Piece& piece) const {
  const std::span parts = std::span(piece.work->parts)
                              .subspan(piece.first, piece.last - piece.first);
  if (piece.work->drop)
    coherence_.AcquireParts(parts);
  else
    coherence_.PublishDeviceParts(parts);
  piece.work->left.fetch_sub(1, std::memory_order_release);
}

std::optional<LineWorkers::Piece> LineWorkers::Take() {
  if (waiting_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  const SpinLock lock(locked_);
  if (pieces_.empty()) return std::nullopt;
  std::optional<Piece> piece = std::move(pieces_.front());
  pieces_.pop_front();
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return piece;
}

bool LineWorkers::Help() {
  const std::optional<Piece> piece = Take();
  if (!piece) return false;
  Execute(*piece);
  return true;
}

void LineWorkers::Run() {
  const OwnThread own;
  Backoff backoff;
  for (;;) {
    if (Help()) {
      backoff.Reset();
      continue;
    }
    backoff.Pause();
    if (backoff.spinning()) continue;
    std::unique_lock lock(mutex_);
    sleeping_.fetch_add(1);
    // Wait only once. A thread that wakes too late for these pieces stays awake
    // for the next ones.
    if (!stop_ && waiting_.load() == 0) wake_.wait(lock);
    sleeping_.fetch_sub(1);
    if (stop_) return;
    backoff.Reset();
  }
}

}  // namespace jax_cxl::comm
