#ifndef JAX_CXL_BASE_STATUS_H_
#define JAX_CXL_BASE_STATUS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jax_cxl {

// Kinds of errors that callers treat differently. `ToFfiError` and the Python
// module map each code to one exception type.
enum class Code {
  kOk,
  kInvalidArgument,  // the call itself is wrong
  kNotFound,         // a path or a rank that does not exist
  kAlreadyExists,    // another job holds the name
  kPermissionDenied,
  kResourceExhausted,   // the pool or the machine is too small
  kFailedPrecondition,  // used too early, too late or after an error
  kDataLoss,            // the pool holds something else
  kPeerLost,            // a peer process is gone
  kDeadlineExceeded,    // a peer lives but did not join in time
  kMismatch,            // ranks disagree about a call
  kUnimplemented,
  kInternal,
};

std::string_view CodeName(Code code);

// Facts about an error that programs can read, as pairs of name and value, such
// as ("rank", "3"). They become attributes of the Python exception
// (jax_cxl/errors.py).
using Details = std::vector<std::pair<std::string, std::string>>;

// Returns the code with this number. Another process has written the number, so
// it may be wrong: returns kDataLoss if no error has it.
Code ErrorCode(uint32_t number);

// The outcome of an operation that returns no value. Functions return a Status
// or a Result, because nothing in this library throws.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  const Details& details() const;

  // Returns the same status with one more fact. If the status already has a
  // fact with this name, it keeps the earlier value.
  template <typename T>
  Status With(std::string_view name, const T& value) && {
    std::ostringstream text;
    text << value;
    AddDetail(name, text.str());
    return std::move(*this);
  }
  // Returns the same status with the facts in `other`, except those whose names
  // it already has.
  Status With(const Details& other) &&;

 private:
  void AddDetail(std::string_view name, std::string value);

  Code code_ = Code::kOk;
  std::string message_;
  std::shared_ptr<const Details> details_;  // null: none
};

inline Status OkStatus() { return Status(); }

// Returns a Status whose message consists of the parts, as in
// Error(Code::kNotFound, "no rank ", r).
template <typename... Parts>
Status Error(Code code, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return Status(code, text.str());
}

// A value, or the status that explains why there is no value.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace jax_cxl

// Returns the status `expr` from the enclosing function, unless it is ok.
#define CXL_RETURN_IF_ERROR(expr)                                \
  do {                                                           \
    if (::jax_cxl::Status cxl_status = (expr); !cxl_status.ok()) \
      return cxl_status;                                         \
  } while (false)

#define CXL_CONCAT_INNER(a, b) a##b
#define CXL_CONCAT(a, b) CXL_CONCAT_INNER(a, b)

// Declares `lhs` with the value of the Result `expr`. If it has no value,
// returns its status from the enclosing function.
#define CXL_ASSIGN_OR_RETURN(lhs, expr) \
  CXL_ASSIGN_OR_RETURN_IMPL(CXL_CONCAT(cxl_result_, __LINE__), lhs, expr)
#define CXL_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.status();             \
  lhs = *std::move(tmp)

#endif  // JAX_CXL_BASE_STATUS_H_
