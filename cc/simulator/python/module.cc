// The Python module that lab/simulator calls. It models machines that do
// not exist yet, and is not in the wheel.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"
#include "cc/simulator/bounds.h"
#include "cc/simulator/placement.h"
#include "cc/simulator/run.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

template <typename T>
T ValueOrRaise(Result<T> result) {
  if (!result.ok()) {
    throw nb::value_error(result.status().message().c_str());
  }
  return *std::move(result);
}

// Returns the request of rank 0. If the operation is a permutation, it is a
// ring: every rank receives from its predecessor.
plan::Request MakeRequest(const std::string& op, int ranks, uint64_t count,
                          uint32_t element_bytes) {
  plan::Request request;
  int index = 0;
  while (index < plan::kNumOps && plan::OpName(plan::Op(index)) != op) ++index;
  if (index == plan::kNumOps) {
    throw nb::value_error(("no operation is named " + op).c_str());
  }
  request.op = plan::Op(index);
  request.num_ranks = ranks;
  request.count = request.op == plan::Op::kBarrier ? 0 : count;
  request.element_bytes = element_bytes;
  if (request.op == plan::Op::kPermute) {
    for (int r = 0; r < ranks; ++r) {
      request.sources.push_back((r + ranks - 1) % ranks);
    }
  }
  return request;
}

nb::tuple Pair(const plan::PoolBytes& bytes) {
  return nb::make_tuple(bytes.written, bytes.read);
}

}  // namespace

NB_MODULE(_simulator, m) {
  m.doc() = "Plans of jax_cxl, executed on a model of machines.";

  nb::class_<sim::Machine>(m, "SimMachine")
      .def(nb::init<>())
      .def_rw("hosts", &sim::Machine::hosts)
      .def_rw("gpus_per_host", &sim::Machine::gpus_per_host)
      .def_rw("links_per_host", &sim::Machine::links_per_host)
      .def_rw("cards", &sim::Machine::cards)
      .def_rw("gpu_out", &sim::Machine::gpu_out)
      .def_rw("gpu_in", &sim::Machine::gpu_in)
      .def_rw("uplink", &sim::Machine::uplink)
      .def_rw("card_in", &sim::Machine::card_in)
      .def_rw("card_out", &sim::Machine::card_out)
      .def_rw("card_both", &sim::Machine::card_both)
      .def_rw("memory", &sim::Machine::memory);
  nb::class_<sim::Costs>(m, "SimCosts")
      .def(nb::init<>())
      .def_rw("start", &sim::Costs::start)
      .def_rw("get_latency", &sim::Costs::get_latency)
      .def_rw("ring", &sim::Costs::ring)
      .def_rw("doorbell", &sim::Costs::doorbell)
      .def_rw("poll", &sim::Costs::poll)
      .def_rw("write_back_rate", &sim::Costs::write_back_rate)
      .def_rw("drop_rate", &sim::Costs::drop_rate)
      .def_rw("doorbell_bytes", &sim::Costs::doorbell_bytes);
  nb::class_<plan::Geometry>(m, "Geometry")
      .def_rw("slot_bytes", &plan::Geometry::slot_bytes)
      .def_rw("num_slots", &plan::Geometry::num_slots)
      .def_rw("all_read_bytes", &plan::Geometry::all_read_bytes)
      .def_rw("part_alignment", &plan::Geometry::part_alignment);
  m.def(
      "gpu_geometry",
      [](int num_devices, int num_ranks, uint64_t slot_bytes) {
        plan::Geometry geometry =
            plan::GpuGeometry(num_devices, num_ranks, slot_bytes);
        const plan::Stripes stripes =
            sim::KernelStripes(slot_bytes, num_devices, num_ranks);
        geometry.part_alignment = stripes.period();
        if (num_devices > 1)
          geometry.device_parts = static_cast<int>(stripes.num_blocks);
        return geometry;
      },
      "The rings of a group of GPUs in a pool of `devices` devices, for "
      "kernels.",
      "num_devices"_a, "num_ranks"_a, "slot_bytes"_a = plan::kGpuSlotBytes);
  nb::class_<sim::Report>(m, "SimReport")
      .def_ro("seconds", &sim::Report::seconds)
      .def_ro("busiest", &sim::Report::busiest)
      .def_ro("busy", &sim::Report::busy);

  m.def(
      "simulate_plans",
      [](const std::string& op, uint64_t count, uint32_t element_bytes,
         const sim::Machine& machine, const sim::Costs& costs,
         const plan::Geometry& geometry, bool flags, uint64_t sample_rounds) {
        const int ranks = machine.ranks();
        const plan::Request request =
            MakeRequest(op, ranks, count, element_bytes);
        sim::LowerOptions options;
        options.flags = flags;
        options.stripes =
            sim::KernelStripes(geometry.slot_bytes, machine.cards, ranks);
        return ValueOrRaise(sim::RunPlans(request, geometry, machine, costs,
                                          options, sample_rounds));
      },
      "The plans of jax_cxl for a call of all ranks, executed on the model.",
      "op"_a, "count"_a, "element_bytes"_a, "machine"_a, "costs"_a,
      nb::kw_only(), "geometry"_a, "flags"_a, "sample_rounds"_a);
  m.def(
      "count_plan_bytes",
      [](const std::string& op, int ranks, uint64_t count,
         uint32_t element_bytes, const plan::Geometry& geometry, int cards) {
        const sim::Counted counted = ValueOrRaise(sim::CountBytes(
            MakeRequest(op, ranks, count, element_bytes), geometry,
            sim::KernelStripes(geometry.slot_bytes, cards, ranks), cards));
        nb::dict values;
        values["rank"] = Pair(counted.most_by_rank);
        values["card"] = Pair(counted.most_by_card);
        values["all"] = Pair(counted.all);
        return values;
      },
      "Bytes (written, read) that the plans of a call move: the most of any "
      "rank, the most of any card, and all.",
      "op"_a, "ranks"_a, "count"_a, "element_bytes"_a, nb::kw_only(),
      "geometry"_a, "cards"_a);
  m.def(
      "bound_bytes",
      [](const std::string& op, int ranks, uint64_t count,
         uint32_t element_bytes) {
        plan::Request request = MakeRequest(op, ranks, count, element_bytes);
        plan::PoolBytes most, all;
        for (request.rank = 0; request.rank < ranks; ++request.rank) {
          const plan::PoolBytes bound = plan::LowerBound(request);
          most.written = std::max(most.written, bound.written);
          most.read = std::max(most.read, bound.read);
          all.written += bound.written;
          all.read += bound.read;
        }
        nb::dict values;
        values["rank"] = Pair(most);
        values["all"] = Pair(all);
        return values;
      },
      "plan::LowerBound as (written, read): the most of any rank, and all.",
      "op"_a, "ranks"_a, "count"_a, "element_bytes"_a);
}

}  // namespace jax_cxl
