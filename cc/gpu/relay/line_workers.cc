#include "cc/gpu/relay/line_workers.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "cc/base/idle.h"

namespace jax_cxl::comm {
namespace {

// Work of at most this many bytes is done by the thread that calls Start.
constexpr size_t kShortBytes = size_t{64} << 10;
// The largest number of pieces into which a Start divides its work. Long work
// has larger pieces instead, so that threads lose little time between two
// pieces.
constexpr size_t kMostPieces = 16;

}  // namespace

LineWorkers::LineWorkers(const pool::Coherence& coherence, int helpers,
                         size_t piece_bytes)
    : coherence_(coherence), piece_bytes_(piece_bytes) {
  for (int i = 0; i < helpers; ++i) threads_.emplace_back([this] { Run(); });
}

LineWorkers::~LineWorkers() {
  stop_ = true;
  ++calls_;
  calls_.notify_all();
}

std::shared_ptr<LineWork> LineWorkers::Start(std::span<const pool::Part> parts,
                                             bool drop) {
  size_t bytes = 0;
  for (const pool::Part& part : parts) bytes += part.bytes;
  auto work = std::make_shared<LineWork>();
  if (bytes <= kShortBytes) {
    if (bytes > 0) Flush(parts, drop);
    return work;
  }
  const size_t piece_bytes = std::max(piece_bytes_, bytes / kMostPieces);
  std::vector<Piece> pieces;
  size_t room = 0;  // in the last piece
  for (pool::Part part : parts) {
    while (part.bytes > 0) {
      if (room == 0) {
        pieces.push_back({work, drop, {}});
        room = piece_bytes;
      }
      const size_t taken = std::min(part.bytes, room);
      pieces.back().parts.push_back({part.begin, taken});
      part.begin = static_cast<const std::byte*>(part.begin) + taken;
      part.bytes -= taken;
      room -= taken;
    }
  }
  work->left = static_cast<int>(pieces.size());
  {
    const std::lock_guard lock(lock_);
    waiting_.fetch_add(pieces.size());
    std::ranges::move(pieces, std::back_inserter(pieces_));
  }
  // Wake only one thread for each Start, because waking a thread may take as
  // long as several pieces.
  ++calls_;
  calls_.notify_one();
  return work;
}

void LineWorkers::Flush(std::span<const pool::Part> parts, bool drop) const {
  if (drop)
    coherence_.AcquireParts(parts);
  else
    coherence_.PublishDeviceParts(parts);
}

std::optional<LineWorkers::Piece> LineWorkers::Take() {
  if (waiting_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  const std::lock_guard lock(lock_);
  if (pieces_.empty()) return std::nullopt;
  std::optional<Piece> piece = std::move(pieces_.front());
  pieces_.pop_front();
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return piece;
}

bool LineWorkers::Help() {
  const std::optional<Piece> piece = Take();
  if (!piece) return false;
  Flush(piece->parts, piece->drop);
  piece->work->left.fetch_sub(1, std::memory_order_release);
  return true;
}

void LineWorkers::Run() {
  const OwnThread own;
  Backoff backoff;
  while (!stop_) {
    if (Help()) {
      backoff.Reset();
      continue;
    }
    backoff.Pause();
    if (backoff.spinning()) continue;
    const uint32_t calls = calls_;
    ++sleeping_;
    // Wait until the next call of Start, even if its pieces are gone by then. A
    // thread that wakes too late for these pieces stays awake for those of
    // later calls.
    if (!stop_ && waiting_ == 0) calls_.wait(calls);
    --sleeping_;
    backoff.Reset();
  }
}

}  // namespace jax_cxl::comm
