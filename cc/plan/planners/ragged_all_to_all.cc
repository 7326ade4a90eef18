#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {
namespace {

// The tables of Request::ragged, one entry per slice.
class Tables {
 public:
  explicit Tables(const Request& request)
      : ragged_(request.ragged), entries_(request.num_ranks * ragged_.slices) {}

  uint64_t entries() const { return entries_; }
  int64_t InputOffset(int rank, uint64_t k) const { return At(rank, 0, k); }
  int64_t SendSize(int rank, uint64_t k) const { return At(rank, 1, k); }
  int64_t OutputOffset(int rank, uint64_t k) const { return At(rank, 2, k); }
  int64_t RecvSize(int rank, uint64_t k) const { return At(rank, 3, k); }

 private:
  int64_t At(int rank, int column, uint64_t k) const {
    return ragged_.tables[(rank * 4 + column) * entries_ + k];
  }

  const Ragged& ragged_;
  const uint64_t entries_;
};

// A part of a slice, and its place in the sender's slot.
struct Piece {
  int receiver = 0;
  uint64_t round = 0;
  uint64_t at = 0;    // in the slot
  uint64_t from = 0;  // in the sender's input
  uint64_t to = 0;    // in the receiver's output
  uint64_t bytes = 0;
};

// Fills one slot after another with the slices that `sender` has for its peers,
// starting with its successor. Each rank does this for all senders, and so
// knows the places of the pieces that it receives.
std::vector<Piece> Pack(const Planner& planner, const Tables& tables,
                        int sender, uint64_t* rounds) {
  const Request& request = planner.request();
  const uint64_t element = request.element_bytes, row = planner.block();
  std::vector<Piece> pieces;
  uint64_t round = 0, at = 0;
  for (int i = 1; i < planner.ranks(); ++i) {
    const int receiver = (sender + i) % planner.ranks();
    for (uint64_t s = 0; s < request.ragged.slices; ++s) {
      const uint64_t k = receiver * request.ragged.slices + s;
      const uint64_t total = tables.SendSize(sender, k) * row;
      for (uint64_t done = 0; done < total;) {
        const uint64_t room =
            (planner.geometry().slot_bytes - at) / element * element;
        Piece& piece = pieces.emplace_back();
        piece.receiver = receiver;
        piece.round = round;
        piece.at = at;
        piece.from = tables.InputOffset(sender, k) * row + done;
        piece.to = tables.OutputOffset(sender, k) * row + done;
        piece.bytes = std::min(room, total - done);
        done += piece.bytes;
        at += (piece.bytes + kSlotAlignment - 1) / kSlotAlignment *
              kSlotAlignment;
        *rounds = std::max(*rounds, round + 1);
        if (at < planner.geometry().slot_bytes) continue;
        ++round;
        at = 0;
      }
    }
  }
  return pieces;
}

template <typename... Parts>
Status Refuse(const Parts&... parts) {
  return Error(Code::kInvalidArgument, "ragged_all_to_all: ", parts...);
}

Status CheckRange(const char* what, int rank, const char* offset_name,
                  const char* size_name, uint64_t k, int64_t offset,
                  int64_t size, uint64_t rows) {
  if (offset >= 0 && size >= 0 && static_cast<uint64_t>(offset) <= rows &&
      static_cast<uint64_t>(size) <= rows - offset)
    return OkStatus();
  return Refuse("rank ", rank, ": ", offset_name, "[", k, "] = ", offset,
                " and ", size_name, "[", k, "] = ", size, " leave the ", rows,
                " rows of ", what);
}

// If two slices had one place, the one that arrives last would win.
Status CheckOverlaps(const Request& request, const Tables& tables,
                     int receiver) {
  struct Slice {
    int64_t begin, end;
    int sender;
  };
  std::vector<Slice> slices;
  for (int sender = 0; sender < request.num_ranks; ++sender) {
    for (uint64_t s = 0; s < request.ragged.slices; ++s) {
      const uint64_t k = receiver * request.ragged.slices + s;
      const int64_t begin = tables.OutputOffset(sender, k);
      const int64_t size = tables.SendSize(sender, k);
      if (size > 0) slices.push_back({begin, begin + size, sender});
    }
  }
  std::sort(slices.begin(), slices.end(),
            [](const Slice& a, const Slice& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < slices.size(); ++i) {
    const Slice &a = slices[i - 1], &b = slices[i];
    if (a.end > b.begin)
      return Refuse("in the output of rank ", receiver, ", rows [", a.begin,
                    ", ", a.end, ") from rank ", a.sender, " and rows [",
                    b.begin, ", ", b.end, ") from rank ", b.sender, " overlap");
  }
  return OkStatus();
}

}  // namespace

Status CheckRagged(const Request& request, const Geometry& geometry,
                   uint64_t max_rounds) {
  const Ragged& ragged = request.ragged;
  const int n = request.num_ranks;
  // Far from overflowing 64 bits, in bytes too.
  constexpr uint64_t kMaxBytes = uint64_t{1} << 44;
  const uint64_t row = std::max<uint64_t>(request.count, 1);
  const uint64_t most = kMaxBytes / request.element_bytes / row;
  if (ragged.input_rows > most || ragged.output_rows > most)
    return Refuse(ragged.input_rows, " and ", ragged.output_rows,
                  " rows are more than ", kMaxBytes, " bytes");
  const Tables tables(request);
  if (ragged.slices < 1 || ragged.tables.size() / 4 / n != tables.entries() ||
      ragged.tables.size() % (4 * tables.entries()) != 0)
    return Refuse("the tables of ", n, " ranks with ", ragged.slices,
                  " slices a pair have ", ragged.tables.size(), " entries");
  for (int rank = 0; rank < n; ++rank) {
    uint64_t rows = 0;
    for (uint64_t k = 0; k < tables.entries(); ++k) {
      const int64_t size = tables.SendSize(rank, k);
      CXL_RETURN_IF_ERROR(
          CheckRange("its operand", rank, "input_offsets", "send_sizes", k,
                     tables.InputOffset(rank, k), size, ragged.input_rows));
      CXL_RETURN_IF_ERROR(
          CheckRange("the output", rank, "output_offsets", "send_sizes", k,
                     tables.OutputOffset(rank, k), size, ragged.output_rows));
      const int peer = static_cast<int>(k / ragged.slices);
      const uint64_t there = rank * ragged.slices + k % ragged.slices;
      const int64_t received = tables.RecvSize(peer, there);
      if (received != size)
        return Refuse("rank ", rank, " sends ", size, " rows (send_sizes[", k,
                      "]), and rank ", peer, " expects ", received,
                      " (recv_sizes[", there, "])");
      rows += size;
    }
    // A slice may end before the end of a slot, by less than kSlotAlignment.
    const uint64_t bytes = rows * request.count * request.element_bytes;
    const uint64_t rounds =
        2 * (bytes / geometry.slot_bytes) +
        tables.entries() * kSlotAlignment / geometry.slot_bytes;
    if (rounds > max_rounds)
      return Error(Code::kResourceExhausted, "ragged_all_to_all: ", bytes,
                   " bytes through slots of ", geometry.slot_bytes,
                   " take more than ", max_rounds, " rounds; use larger slots");
  }
  for (int rank = 0; rank < n; ++rank)
    CXL_RETURN_IF_ERROR(CheckOverlaps(request, tables, rank));
  return OkStatus();
}

// Round t carries the t-th slot of data that a rank sends to others. Ranks with
// no more data publish nothing.
Plan PlanRaggedAllToAll(Planner planner) {
  const Request& request = planner.request();
  const int n = planner.ranks(), rank = planner.rank();
  const Tables tables(request);
  uint64_t rounds = 1;
  std::vector<std::vector<Piece>> pieces(n);
  for (int sender = 0; sender < n; ++sender) {
    pieces[sender] = Pack(planner, tables, sender, &rounds);
    if (sender != rank)
      std::erase_if(pieces[sender], [rank](const Piece& piece) {
        return piece.receiver != rank;
      });
  }
  // Pieces are sorted by round.
  std::vector<size_t> next(n);
  auto each = [&](int sender, uint64_t t, const auto& visit) {
    size_t& i = next[sender];
    for (; i < pieces[sender].size() && pieces[sender][i].round == t; ++i)
      visit(pieces[sender][i]);
  };
  auto publish = [&](uint64_t t) {
    each(rank, t, [&](const Piece& piece) {
      planner.Put(t, piece.from, piece.at, piece.bytes);
    });
    planner.Publish(t);
  };
  auto retrieve = [&](uint64_t t) {
    for (int i = 1; i < n; ++i) {
      const int peer = planner.Peer(i);
      each(peer, t, [&](const Piece& piece) {
        planner.Get(peer, t, piece.at, piece.to, piece.bytes);
      });
    }
  };
  Pipeline(rounds, publish, retrieve);
  // These copies come last, because no peer waits for them.
  const uint64_t row = planner.block();
  for (uint64_t s = 0; s < request.ragged.slices; ++s) {
    const uint64_t k = rank * request.ragged.slices + s;
    planner.Copy(tables.InputOffset(rank, k) * row,
                 tables.OutputOffset(rank, k) * row,
                 tables.SendSize(rank, k) * row);
  }
  return std::move(planner).Finish(rounds);
}

}  // namespace jax_cxl::plan
