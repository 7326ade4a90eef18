#include "cc/pool/media/uri.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "cc/pool/layout/layout.h"
#include "cc/pool/open/shm.h"

namespace jax_cxl::pool {
namespace {

// What URIs of a medium look like, in the order of Medium.
struct Form {
  std::string_view example;
  std::vector<std::string_view> options;
  CoherenceMode coherence = CoherenceMode::kCoherent;  // the default
};

const std::vector<Form>& Forms() {
  static const auto& forms = *new std::vector<Form>{
      {.example = "shm:my_job?size=1GiB&devices=6",
       .options = {"size", "offset", "coherence", "gpu_writes", "devices",
                   "keep"}},
      {.example = "file:/mnt/pool/a,/mnt/pool/b?size=1GiB&offset=4KiB",
       .options = {"size", "offset", "coherence", "gpu_writes", "devices"}},
      {.example = "dax:/dev/dax0.0,/dev/dax1.0?offset=2MiB",
       .options = {"size", "offset", "coherence", "gpu_writes"},
       .coherence = CoherenceMode::kFlush},
  };
  return forms;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c >= 0 && c < ' ') {
      char code[5];
      std::snprintf(code, sizeof(code), "\\x%02x", c);
      quoted += code;
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string Joined(const std::vector<std::string_view>& items,
                   std::string_view between) {
  std::string joined;
  for (const std::string_view item : items)
    joined.append(joined.empty() ? "" : between).append(item);
  return joined;
}

std::string_view Stripped(std::string_view text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

class Parser {
 public:
  explicit Parser(std::string_view uri) : uri_(uri) {}

  Result<PoolUri> Parse() {
    if (uri_.find('\0') != uri_.npos) return Wrong("it has a zero byte");
    const size_t colon = uri_.find(':');
    const std::string_view kind = uri_.substr(0, colon);
    const Result<Medium> medium = ParseMedium(kind);
    if (colon == uri_.npos || !medium.ok())
      return Wrong("it starts with " + Quoted(kind) +
                   ", not with shm:, file: or dax:");
    form_ = &Forms()[static_cast<size_t>(*medium)];
    parsed_.spec.medium = *medium;
    const std::string_view rest = uri_.substr(colon + 1);
    const size_t question = rest.find('?');
    if (question != rest.npos)
      CXL_RETURN_IF_ERROR(ReadOptions(rest.substr(question + 1)));
    CXL_RETURN_IF_ERROR(ReadHowItIsUsed());
    CXL_RETURN_IF_ERROR(ReadPaths(rest.substr(0, question)));
    CXL_RETURN_IF_ERROR(ReadSize("size", &parsed_.spec.bytes));
    CXL_RETURN_IF_ERROR(ReadSize("offset", &parsed_.spec.offset));
    return parsed_;
  }

 private:
  Status Wrong(const std::string& problem) const {
    std::vector<std::string_view> examples;
    for (const Form& form : Forms())
      if (form_ == nullptr || form_ == &form) examples.push_back(form.example);
    return Error(Code::kInvalidArgument, "pool URI ", Quoted(uri_), ": ",
                 problem, "; write for example ", Joined(examples, " or "));
  }

  Status ReadOptions(std::string_view query) {
    for (;;) {
      const size_t end = query.find('&');
      const std::string_view option = query.substr(0, end);
      const size_t equals = option.find('=');
      const std::string_view key = option.substr(0, equals);
      if (std::ranges::find(form_->options, key) == form_->options.end())
        return Wrong(Quoted(key) + " is not an option; the options are " +
                     Joined(form_->options, ", "));
      if (equals == option.npos || equals + 1 == option.size())
        return Wrong("option " + Quoted(key) + " has no value");
      if (!options_.emplace(key, option.substr(equals + 1)).second)
        return Wrong("option " + Quoted(key) + " is given twice");
      if (end == query.npos) return OkStatus();
      query.remove_prefix(end + 1);
    }
  }

  // Returns the value of an option, or "" if the URI does not name it.
  std::string_view ValueOf(std::string_view key) const {
    const auto found = options_.find(key);
    return found == options_.end() ? "" : found->second;
  }

  // Reads a switch, which has one value.
  Status ReadSwitch(std::string_view key, std::string_view value, bool* on) {
    *on = options_.contains(key);
    if (*on && ValueOf(key) != value)
      return Wrong(std::string(key) + "=" + Quoted(ValueOf(key)) + " is not " +
                   std::string(value));
    return OkStatus();
  }

  Status ReadHowItIsUsed() {
    CXL_RETURN_IF_ERROR(
        ReadSwitch("gpu_writes", "memory", &parsed_.gpu_writes_memory));
    CXL_RETURN_IF_ERROR(ReadSwitch("keep", "on-failure", &parsed_.keep));
    parsed_.spec.coherence = form_->coherence;
    parsed_.coherence_given = options_.contains("coherence");
    if (parsed_.coherence_given) {
      const auto mode = ParseCoherenceMode(ValueOf("coherence"));
      if (!mode.ok())
        return Wrong("coherence=" + Quoted(ValueOf("coherence")) +
                     " is not coherent or uncached or flush");
      parsed_.spec.coherence = *mode;
    }
    if (parsed_.gpu_writes_memory &&
        parsed_.spec.coherence != CoherenceMode::kFlush)
      return Wrong(
          "gpu_writes=memory says that no write-back is needed, and with "
          "coherence=" +
          std::string(CoherenceModeName(parsed_.spec.coherence)) +
          " there is none: leave it out, or write coherence=flush");
    if (!options_.contains("devices")) return OkStatus();
    const std::string_view devices = ValueOf("devices");
    int& number = parsed_.spec.devices_per_path;
    const auto [end, error] = std::from_chars(
        devices.data(), devices.data() + devices.size(), number);
    if (error != std::errc() || end != devices.data() + devices.size() ||
        devices.front() == '0' || number < 1 || number > kMaxExtents)
      return Wrong("devices=" + Quoted(devices) +
                   " is not a number from 1 to " + std::to_string(kMaxExtents));
    return OkStatus();
  }

  Status ReadPaths(std::string_view place) {
    std::vector<std::string>& paths = parsed_.spec.paths;
    if (!parsed_.spec.shared()) {
      if (place.empty()) return OkStatus();
      if (!IsShmName(place))
        return Wrong("name " + Quoted(place) + " must be " +
                     std::string(kShmNames));
      paths.emplace_back(place);
      return OkStatus();
    }
    for (;;) {
      const size_t comma = place.find(',');
      const std::string path(place.substr(0, comma));
      // A relative path would depend on the folder in which each process was
      // started.
      if (!path.starts_with('/'))
        return Wrong("path " + Quoted(path) + " does not start with '/'");
      if (std::ranges::find(paths, path) != paths.end())
        return Wrong("path " + Quoted(path) + " is named twice");
      paths.push_back(path);
      if (comma == place.npos) return OkStatus();
      place.remove_prefix(comma + 1);
    }
  }

  // Reads a size such as 512, 4KiB or 64 MiB.
  Status ReadSize(std::string_view key, uint64_t* bytes) {
    if (!options_.contains(key)) return OkStatus();
    const std::string_view given = ValueOf(key);
    std::string_view text = Stripped(given);
    const std::string_view digits =
        text.substr(0, std::ranges::find_if_not(text, [](unsigned char c) {
                         return std::isdigit(c) != 0;
                       }) - text.begin());
    const std::string_view unit = Stripped(text.substr(digits.size()));
    constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    const auto* const found = std::ranges::find(kUnits, unit);
    if (digits.empty() || digits.size() > 20 ||
        (found == std::end(kUnits) && !unit.empty()))
      return Wrong(std::string(key) + "=" + Quoted(given) +
                   " is not a size such as 512, 4KiB or 64MiB" +
                   Meant(digits, unit));
    const auto shift = unit.empty() ? 0 : 10 * (found - kUnits);
    constexpr uint64_t kMost = uint64_t{1} << 62;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), *bytes);
    if (error != std::errc() || *bytes >= kMost >> shift)
      return Wrong(std::string(key) + "=" + Quoted(given) +
                   " is larger than any memory");
    *bytes <<= shift;
    return OkStatus();
  }

  // What the user probably meant, such as "1GiB" for "1GB", "1G" or "1gib".
  static std::string Meant(std::string_view digits, std::string_view unit) {
    std::string lower(unit);
    for (char& c : lower) c = static_cast<char>(std::tolower(c));
    constexpr std::string_view kPrefixes = "kmgt", kEnds[] = {"", "b", "ib"};
    if (digits.empty() || lower.empty() ||
        kPrefixes.find(lower[0]) == kPrefixes.npos ||
        std::ranges::find(kEnds, lower.substr(1)) == std::end(kEnds))
      return "";
    const auto prefix = static_cast<char>(std::toupper(lower[0]));
    return ": write " + std::string(digits) + prefix + "iB";
  }

  const std::string_view uri_;
  const Form* form_ = nullptr;
  std::map<std::string_view, std::string_view> options_;
  PoolUri parsed_;
};

}  // namespace

Result<PoolUri> ParsePoolUri(std::string_view uri) {
  return Parser(uri).Parse();
}

}  // namespace jax_cxl::pool
