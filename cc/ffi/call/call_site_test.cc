#include "cc/ffi/call/call_site.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cc/ffi/call/program_sites.h"
#include "cc/plan/plan.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

using Value = std::variant<int32_t, int64_t, std::string, std::vector<int32_t>,
                           std::vector<int64_t>>;
using Attributes = std::map<std::string, Value>;

// Attributes in the form in which XLA passes them. XLA sorts them by name, and
// so does `Attributes`.
class Encoded {
 public:
  explicit Encoded(Attributes attributes) : attributes_(std::move(attributes)) {
    for (auto& [name, value] : attributes_) {
      names_.push_back({name.data(), name.size()});
      std::visit([this](auto& v) { Add(v); }, value);
    }
    for (XLA_FFI_ByteSpan& name : names_) name_pointers_.push_back(&name);
    attrs_ = {sizeof(XLA_FFI_Attrs),
              nullptr,
              static_cast<int64_t>(names_.size()),
              types_.data(),
              name_pointers_.data(),
              values_.data()};
  }

  xffi::Dictionary dictionary() const { return xffi::Dictionary(&attrs_); }

 private:
  template <typename T>
  static constexpr XLA_FFI_DataType kType =
      sizeof(T) == sizeof(int32_t) ? XLA_FFI_DataType_S32
                                   : XLA_FFI_DataType_S64;

  template <typename T>
  void Add(T& value) {
    types_.push_back(XLA_FFI_AttrType_SCALAR);
    values_.push_back(&scalars_.emplace_back(XLA_FFI_Scalar{kType<T>, &value}));
  }
  template <typename T>
  void Add(std::vector<T>& value) {
    types_.push_back(XLA_FFI_AttrType_ARRAY);
    values_.push_back(&arrays_.emplace_back(
        XLA_FFI_Array{kType<T>, value.size(), value.data()}));
  }
  void Add(std::string& value) {
    types_.push_back(XLA_FFI_AttrType_STRING);
    values_.push_back(
        &texts_.emplace_back(XLA_FFI_ByteSpan{value.data(), value.size()}));
  }

  Attributes attributes_;
  std::deque<XLA_FFI_ByteSpan> names_, texts_;
  std::deque<XLA_FFI_Scalar> scalars_;
  std::deque<XLA_FFI_Array> arrays_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<void*> values_;
  XLA_FFI_Attrs attrs_;
};

// Returns the attributes of a psum of five float32 in two groups, in a program
// with the name `program`.
Attributes Psum(const std::string& program) {
  return {{"op", static_cast<int32_t>(plan::Op::kAllReduce)},
          {"reduce_op", static_cast<int32_t>(ReduceOp::kMax)},
          {"dtype", static_cast<int32_t>(DType::kFloat32)},
          {"count", int64_t{5}},
          {"root", int32_t{0}},
          {"group_size", int32_t{2}},
          {"groups", std::vector<int32_t>{0, 3, 2, 1}},
          {"sources", std::vector<int32_t>{}},
          {"reverse", int32_t{0}},
          {"rows", std::vector<int64_t>{}},
          {"places", std::vector<int32_t>{}},
          {"processes", int32_t{0}},
          {"generation", int32_t{4}},
          {"program", program},
          {"name", std::string("pmax")},
          {"site", int64_t{7}}};
}

std::unique_ptr<CallSite> Make(const Attributes& attributes) {
  auto site = CallSite::Make(Encoded(attributes).dictionary());
  EXPECT_TRUE(site.has_value()) << site.error().message();
  return site.has_value() ? std::move(*site) : nullptr;
}

std::string ErrorOf(const Attributes& attributes) {
  auto site = CallSite::Make(Encoded(attributes).dictionary());
  return site.has_value() ? "" : site.error().message();
}

// Makes a site of a program that is complete, with this hash and count.
std::unique_ptr<CallSite> Load(const Attributes& attributes,
                               uint64_t hash = 1234,
                               uint32_t run_ids_from = 100) {
  auto site = Make(attributes);
  const auto program = std::get<std::string>(attributes.at("program"));
  ProgramSites::Get().Complete(program, hash, run_ids_from);
  return site;
}

uint64_t Next(CallSite& site, int64_t run_id, int32_t device) {
  comm::Call call;
  const Status status = site.Identify(run_id, device, &call);
  EXPECT_TRUE(status.ok()) << status.message();
  return call.identity;
}

TEST(CallSiteTest, ReadsTheAttributes) {
  const auto site = Make(Psum("reads"));
  const comm::Call& call = site->prototype();
  EXPECT_EQ(call.request.op, plan::Op::kAllReduce);
  EXPECT_EQ(call.request.num_ranks, 2);
  EXPECT_EQ(call.request.count, 5u);
  EXPECT_EQ(call.request.element_bytes, 4u);
  EXPECT_FALSE(call.request.reverse);
  EXPECT_EQ(call.dtype, DType::kFloat32);
  EXPECT_EQ(call.reduce_op, ReduceOp::kMax);
  EXPECT_EQ(call.name, "pmax");
  EXPECT_EQ(site->generation(), 4);
}

TEST(CallSiteTest, ReadsWhatOnlySomeOperationsHave) {
  Attributes attributes = Psum("permutes");
  attributes["op"] = static_cast<int32_t>(plan::Op::kPermute);
  attributes["sources"] = std::vector<int32_t>{1, -1};
  EXPECT_EQ(Make(attributes)->prototype().request.sources,
            (std::vector<int32_t>{1, -1}));
  attributes["op"] = static_cast<int32_t>(plan::Op::kScan);
  attributes["reverse"] = int32_t{1};
  EXPECT_TRUE(Make(attributes)->prototype().request.sources.empty());
  EXPECT_TRUE(Make(attributes)->prototype().request.reverse);
  attributes["op"] = static_cast<int32_t>(plan::Op::kRaggedAllToAll);
  attributes["rows"] = std::vector<int64_t>{10, 20, 6, 2};
  const plan::Rows rows = Make(attributes)->prototype().request.rows;
  EXPECT_EQ(rows.table, 10u);
  EXPECT_EQ(rows.taken, 20u);
  EXPECT_EQ(rows.slices, 6u);
  EXPECT_EQ(rows.elements, 2u);
}

TEST(CallSiteTest, EveryAttributeIsNeeded) {
  const Attributes all = Psum("lacks");
  EXPECT_EQ(ErrorOf(all), "");
  for (const auto& [name, value] : all) {
    const std::string text = "lacks the attribute '" + name + "'";
    Attributes fewer = all;
    fewer.erase(name);
    EXPECT_NE(ErrorOf(fewer).find(text), std::string::npos);
    // An attribute of a wrong type counts as missing.
    Attributes other = all;
    other[name] = std::holds_alternative<std::string>(value)
                      ? Value(int32_t{0})
                      : Value(std::string("0"));
    EXPECT_NE(ErrorOf(other).find(text), std::string::npos);
  }
}

TEST(CallSiteTest, AttributesOutOfRangeAreErrors) {
  const std::vector<std::pair<std::string, Value>> wrong = {
      {"op", int32_t{-1}},
      {"op", int32_t{plan::kNumOps}},
      {"dtype", int32_t{-1}},
      {"dtype", int32_t{kNumDTypes}},
      {"reduce_op", int32_t{-1}},
      {"reduce_op", int32_t{kNumReduceOps}},
      {"count", int64_t{-1}},
      {"root", int32_t{-1}},
      {"root", int32_t{4}},
      {"group_size", int32_t{0}},
      {"group_size", int32_t{3}},  // of four ranks
      // A ragged_all_to_all without the attribute `rows`.
      {"op", static_cast<int32_t>(plan::Op::kRaggedAllToAll)}};
  for (const auto& [name, value] : wrong) {
    Attributes attributes = Psum("out of range");
    attributes[name] = value;
    EXPECT_NE(ErrorOf(attributes).find("out of range"), std::string::npos)
        << name;
  }
}

TEST(CallSiteTest, OnlySomeOperationsRunInLevels) {
  Attributes attributes = Psum("levels");
  attributes["processes"] = int32_t{1};
  attributes["places"] = std::vector<int32_t>{1, 0};
  EXPECT_EQ(Make(attributes)->grid().Find(0), std::pair(0, 1));
  attributes["op"] = static_cast<int32_t>(plan::Op::kScan);
  EXPECT_NE(ErrorOf(attributes).find("out of range"), std::string::npos);
}

TEST(CallSiteTest, AnExecutionIsThatOfTheRanksGroup) {
  const auto site = Make(Psum("executes"));
  float input = 0, output = 0;
  const Result<CallSite::Execution> execution =
      site->MakeExecution(3, &input, &output);
  ASSERT_TRUE(execution.ok()) << execution.status().message();
  EXPECT_EQ(*execution->members, (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(execution->call->request.rank, 1);
  EXPECT_EQ(execution->call->input, reinterpret_cast<std::byte*>(&input));
  EXPECT_EQ(execution->call->output, reinterpret_cast<std::byte*>(&output));
  EXPECT_EQ(execution->call->name, "pmax");
  EXPECT_EQ(site->MakeExecution(2, &input, &output)->call->request.rank, 0);

  const Status none = site->MakeExecution(4, &input, &output).status();
  EXPECT_EQ(none.code(), Code::kInvalidArgument);
  EXPECT_EQ(none.message(),
            "rank 4 is in none of the groups of pmax; compile the program for "
            "the devices of this job");
}

// A permutation of ranks 10 to 16. Ranks 10, 12 and 15 form a cycle. Rank 14
// sends to rank 11, which is a chain. Rank 13 keeps its own block. Rank 16
// neither sends nor receives.
TEST(CallSiteTest, APermutationRunsInItsCyclesAndChains) {
  Attributes attributes = Psum("chains");
  attributes["op"] = static_cast<int32_t>(plan::Op::kPermute);
  attributes["group_size"] = int32_t{7};
  attributes["groups"] = std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16};
  attributes["sources"] = std::vector<int32_t>{5, 4, 0, 3, -1, 2, -1};
  const auto site = Make(attributes);
  float input = 0, output = 0;
  auto expect = [&](int rank, int place, const std::vector<int32_t>& members,
                    const std::vector<int32_t>& sources) {
    const auto execution = site->MakeExecution(rank, &input, &output);
    ASSERT_TRUE(execution.ok()) << execution.status().message();
    const plan::Request& request = execution->call->request;
    EXPECT_EQ(*execution->members, members) << rank;
    EXPECT_EQ(request.sources, sources) << rank;
    EXPECT_EQ(request.rank, place) << rank;
    EXPECT_EQ(request.num_ranks, static_cast<int>(members.size())) << rank;
  };
  expect(10, 0, {10, 12, 15}, {2, 0, 1});
  expect(12, 1, {10, 12, 15}, {2, 0, 1});
  expect(15, 2, {10, 12, 15}, {2, 0, 1});
  expect(11, 0, {11, 14}, {1, -1});
  expect(14, 1, {11, 14}, {1, -1});
  expect(13, 0, {13}, {0});
  expect(16, 0, {16}, {-1});
  for (const std::vector<int32_t>& wrong :
       {std::vector<int32_t>{5, 4, 0, 3, -1, 2},
        {5, 4, 0, 3, -1, 2, 7},
        {5, 4, 0, 3, -1, 2, -2}}) {
    attributes["sources"] = wrong;
    EXPECT_NE(ErrorOf(attributes).find("out of range"), std::string::npos);
  }
}

TEST(CallSiteTest, BuffersHaveToBeThoseOfTheLowering) {
  Attributes attributes = Psum("checks");
  attributes["op"] = static_cast<int32_t>(plan::Op::kAllGather);
  const auto site = Make(attributes);
  EXPECT_TRUE(site->CheckBuffers(20, 40).ok());
  EXPECT_EQ(site->CheckBuffers(40, 40).code(), Code::kInternal);
  EXPECT_EQ(site->CheckBuffers(20, 20).code(), Code::kInternal);
}

TEST(CallSiteTest, IdentitiesAreEqualOnAllDevicesAndForNoOtherCall) {
  const auto site = Load(Psum("identities"));
  const uint64_t first = Next(*site, 100, 0);
  // The second execution of the call in this launch, and the first one in the
  // next launch.
  const uint64_t second = Next(*site, 100, 0);
  const uint64_t third = Next(*site, 101, 0);
  EXPECT_NE(first, second);
  EXPECT_NE(first, third);
  EXPECT_NE(second, third);
  // On device 1 the launches start in another order.
  EXPECT_EQ(Next(*site, 101, 1), third);
  EXPECT_EQ(Next(*site, 100, 1), first);
  EXPECT_EQ(Next(*site, 100, 1), second);

  Attributes attributes = Psum("identities");
  attributes["site"] = int64_t{8};
  EXPECT_NE(Next(*Load(attributes), 100, 0), first);
  EXPECT_NE(Next(*Load(Psum("identities"), 1235), 100, 0), first);
  attributes = Psum("identities");
  attributes["generation"] = int32_t{5};
  EXPECT_NE(Next(*Load(attributes), 100, 0), first);
}

// XLA counts from other ids on ranks with other numbers of threads, and its ids
// may pass the largest number of 32 bits.
TEST(CallSiteTest, IdentitiesDoNotDependOnWhereXlaCountsFrom) {
  const auto site = Load(Psum("one"), 55, 0xffffffff);
  std::vector<uint64_t> launches;
  for (int64_t run_id : {-1, 0, 1}) launches.push_back(Next(*site, run_id, 0));
  EXPECT_NE(launches[0], launches[1]);
  // Another process would load the program of the first site.
  ProgramSites there;
  ProgramSites& before = ProgramSites::Get();
  ProgramSites::Use(&there);
  const auto same = Load(Psum("one"), 55, 40);
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(Next(*same, 40 + i, 0), launches[i]);
  ProgramSites::Use(&before);
}

TEST(CallSiteTest, UncertainIdentitiesAreErrors) {
  comm::Call call;
  const auto early = Make(Psum("early"));
  EXPECT_EQ(early->Identify(100, 0, &call).code(), Code::kInternal);
  ProgramSites::Get().Complete("early", 77, 100);
  EXPECT_TRUE(early->Identify(100, 0, &call).ok());
  // XLA counts the launches of an equal program from another number.
  const auto twice = Load(Psum("twice"), 77, 300);
  EXPECT_EQ(twice->Identify(300, 0, &call).code(), Code::kInternal);
  // It counts these launches together with those of the first program.
  const auto again = Load(Psum("again"), 77, 100);
  EXPECT_TRUE(again->Identify(101, 0, &call).ok());
}

TEST(CallSiteTest, MessagesNameTheLaunch) {
  const auto site = Load(Psum("jit_step"), 88, 1000);
  comm::Call call;
  for (int64_t run_id : {5000, 5003, 5003})
    EXPECT_TRUE(site->Identify(run_id, 0, &call).ok());
  EXPECT_EQ(*call.program, "jit_step");
  EXPECT_EQ(call.launch, 4u);
  EXPECT_EQ(call.execution, 2u);
  // The count goes on when the program is loaded again.
  const auto again = Load(Psum("jit_step"), 88, 1000);
  EXPECT_TRUE(again->Identify(5004, 0, &call).ok());
  EXPECT_EQ(call.launch, 5u);
}

TEST(CallSiteTest, NumberedCallsHaveTheLinesOfTheirProgram) {
  ProgramSites::Get().NoteNumberedLine("lines", 7, "train.py:3 (step)");
  const auto site = Load(Psum("lines"), 99);
  const auto execution = site->MakeExecution(0, nullptr, nullptr);
  ASSERT_TRUE(execution.ok());
  EXPECT_EQ(execution->call->site, "train.py:3 (step)");
  const auto other = Load(Psum("lines"), 100);
  EXPECT_EQ(other->MakeExecution(0, nullptr, nullptr)->call->site, "");
}

// In this program the calls have no numbers from the compiler hook (`site` is
// -1).
TEST(CallSiteTest, SitesWithoutNumbersAreNumberedAsTheyAreMade) {
  const std::string program = "unnumbered";
  Attributes attributes = Psum(program);
  attributes["site"] = int64_t{-1};
  ProgramSites::Get().NoteLine(
      program,
      CallSite::LineKey("pmax", static_cast<int>(plan::Op::kAllReduce),
                        static_cast<int>(ReduceOp::kMax),
                        static_cast<int>(DType::kFloat32), 5),
      "noted.py:8 (f)");
  const auto first = Make(attributes), second = Make(attributes);
  EXPECT_EQ(first->prototype().site, "noted.py:8 (f)");
  ProgramSites::Get().Complete(program, 1, 100);
  const uint64_t identity = Next(*first, 100, 0);
  EXPECT_NE(identity, Next(*second, 100, 0));
  // As on another rank, which loads the same program from a cache.
  EXPECT_EQ(Next(*Load(attributes, 1), 100, 0), identity);
  // No source line was noted for calls of six elements, so this call has none.
  attributes["count"] = int64_t{6};
  EXPECT_EQ(Make(attributes)->prototype().site, "");
}

}  // namespace
}  // namespace jax_cxl::ffi
