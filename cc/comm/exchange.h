#ifndef JAX_CXL_COMM_EXCHANGE_H_
#define JAX_CXL_COMM_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/connect/connection.h"
#include "cc/comm/endpoint.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/order/submissions.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// How processes agree, outside of programs: each gives some bytes, and gets the
// bytes of all.
//
// An exchange belongs to a *topic*. The n-th exchange of a topic on one process
// meets the n-th exchange of this topic on the others. So within a topic, all
// processes must make their exchanges in the same order, and the caller ensures
// that: it makes the exchanges of a topic in one thread, or under a lock.
// Exchanges of different topics need no order, and neither do exchanges and
// collectives: neither takes a place for which the other could wait.
//
// A process may stop waiting, at its deadline for example. The others still get
// its bytes, and all may go on with the next exchange. So the exchange works
// after errors of collectives, too, as long as the processes live.
//
// The bytes travel as submissions (submissions.h) through memory of this rank
// that no other group uses. Nothing reads this memory while no thread waits in
// an exchange, so an exchange costs other calls nothing.
//
// Thread-safe.
class Exchange {
 public:
  // Takes memory from the arena of `endpoint`. `members` are a rank of each
  // process, and `endpoint` belongs to one of them. Fails with
  // kResourceExhausted.
  static Result<std::unique_ptr<Exchange>> Open(
      pool::Pool* pool, const Peers* peers, Endpoint* endpoint,
      const std::vector<int32_t>& members, const Options& options);

  // What one process tells the others.
  struct Message {
    std::string_view topic;
    std::string_view what = {};  // what the processes do, for messages
    std::string_view bytes = {};
  };

  // Returns the bytes of all members, in their order. Waits for at most
  // `timeout_s` seconds (by default the timeout of the job) until all members
  // have given theirs. After 0 seconds it only gives its own.
  //
  // While it waits, it calls `interrupted` from time to time, and fails with
  // kInternal once that returns true. Other errors: kDeadlineExceeded,
  // kMismatch (the members do not do the same), kPeerLost, the error of a
  // member that has given up (unless this rank had given up before), that of
  // Abort, kDataLoss.
  Result<std::vector<std::string>> AllGather(
      const Message& message, std::optional<double> timeout_s = {},
      const std::function<bool()>& interrupted = [] { return false; });

  // Makes all exchanges that wait, and all later ones, fail with `status`.
  void Abort(const Status& status);

 private:
  // What has arrived of the message of one member.
  struct Part {
    std::string text;  // Message::what, a zero, Message::bytes
    bool whole = false;
  };
  struct Meeting {
    std::vector<Part> parts;  // by member
    int num_whole = 0;
    bool awaited = false;  // by a thread of this process
  };
  struct Unsent {
    uint64_t identity;
    uint64_t sent = 0;  // bytes
  };

  Exchange(pool::Pool* pool, const Peers* peers, Endpoint* endpoint,
           const Group& group, const Options& options);

  int size() const { return static_cast<int>(last_.size()); }
  int32_t RankOf(int member) const {
    return connection_.group().members[member];
  }
  // The caller of the following functions must hold `mutex_`.
  Result<bool> Progress();
  Result<bool> Send();
  Result<bool> Read(int member);
  Result<Meeting*> Find(uint64_t identity, int member);
  // Notes that the whole message of `member` has come, or gone if it is this
  // rank's.
  void Note(std::map<uint64_t, Meeting>::iterator found, int member);
  // Returns the bytes of all members. Fails with kMismatch if the members do
  // different things.
  Result<std::vector<std::string>> Unpack(const std::vector<Part>& parts) const;
  // Fails if the meeting can no longer become complete in time.
  Status Check(const Message& message, const Meeting& meeting,
               bool after_error) const;
  Status CheckTime(const Message& message, const Meeting& meeting,
                   double waited_s, double timeout_s, bool* warned) const;
  std::vector<int> Missing(const Meeting& meeting) const;
  std::string Name(int member) const;
  // Tells the stall detector which ranks this rank waits for.
  std::shared_ptr<std::atomic<bool>> NoteWait(const Message& message,
                                              const Meeting& meeting) const;

  pool::Pool* pool_;
  const Peers* peers_;
  Endpoint* endpoint_;
  const WaitTimes times_;
  std::mutex mutex_;
  Connection connection_;
  std::optional<Submissions> submissions_;  // once connected
  Status aborted_;
  std::map<std::string, uint64_t, std::less<>> counts_;  // by topic
  std::map<uint64_t, Meeting> meetings_;                 // by identity
  std::deque<Unsent> unsent_;
  std::vector<std::string> last_;  // what each member did last
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_EXCHANGE_H_
