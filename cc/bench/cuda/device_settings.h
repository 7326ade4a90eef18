#ifndef JAX_CXL_BENCH_CUDA_DEVICE_SETTINGS_H_
#define JAX_CXL_BENCH_CUDA_DEVICE_SETTINGS_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "cc/bench/cuda/split.h"
#include "cc/testing/cuda/device_world.h"

// The flags of device_benchmark.cc, which explains them.
namespace jax_cxl::comm {

struct Flags {
  std::vector<std::string> ops = {"all_gather", "all_reduce", "reduce_scatter",
                                  "all_to_all", "broadcast",  "gather",
                                  "scatter",    "reduce"};
  std::vector<std::string> sizes = {"4096",     "65536",    "1048576",
                                    "16777216", "67108864", "268435456"};
  std::vector<std::string> shapes = {"64x64x448"};
  std::vector<std::string> slots = {"0x0"};
  std::vector<std::string> copy_engine = {"67108864"};
  std::vector<std::string> kernel_slots = {"0x524288"};
  std::vector<std::string> flagged = {"262144"};
  std::vector<std::string> coherence = {"coherent"};
  std::vector<std::string> flush_threads = {"0"};
  std::vector<std::string> flush_pieces = {"131072"};
  std::vector<std::string> started = {"0"};
  std::vector<std::string> aside = {"1048576"};
  std::vector<std::string> copies = {"0x2097152"};
  int ranks = 0;  // 0: one per GPU
  int repeats = 5;
  uint64_t between = 0;
  bool bound = true;
};

inline Flags Parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value = argument.substr(equals + 1);
    if (name == "--ops")
      flags.ops = Split(value, ',');
    else if (name == "--sizes")
      flags.sizes = Split(value, ',');
    else if (name == "--shapes")
      flags.shapes = Split(value, ',');
    else if (name == "--slots")
      flags.slots = Split(value, ',');
    else if (name == "--copy_engine")
      flags.copy_engine = Split(value, ',');
    else if (name == "--kernel_slots")
      flags.kernel_slots = Split(value, ',');
    else if (name == "--flagged")
      flags.flagged = Split(value, ',');
    else if (name == "--coherence")
      flags.coherence = Split(value, ',');
    else if (name == "--flush_threads")
      flags.flush_threads = Split(value, ',');
    else if (name == "--flush_pieces")
      flags.flush_pieces = Split(value, ',');
    else if (name == "--started")
      flags.started = Split(value, ',');
    else if (name == "--aside")
      flags.aside = Split(value, ',');
    else if (name == "--copies")
      flags.copies = Split(value, ',');
    else if (name == "--ranks")
      flags.ranks = std::stoi(value);
    else if (name == "--bound")
      flags.bound = value != "0";
    else if (name == "--between")
      flags.between = std::stoull(value);
    else if (name == "--repeats")
      flags.repeats = std::stoi(value);
    else
      OkOrDie(Error(Code::kInvalidArgument, "no flag ", name));
  }
  return flags;
}

// One value of each flag that is a list, and what these values mean.
struct Setting {
  std::string shape, slots, copy_engine, kernel_slots, flagged, coherence;
  std::string flush_threads, flush_pieces, started, aside, copies;

  pool::CoherenceMode Mode() const {
    return OrDie(
        pool::ParseCoherenceMode(coherence == "memory" ? "flush" : coherence));
  }
  DeviceOptions Options() const {
    DeviceOptions options;
    const std::vector<std::string> threads = Split(shape, 'x');
    options.shape.blocks = std::stoul(threads[0]);
    options.shape.sending_threads = std::stoul(threads[1]);
    options.shape.receiving_threads = std::stoul(threads[2]);
    options.num_slots = std::stoi(Split(slots, 'x')[0]);
    options.slot_bytes = std::stoull(Split(slots, 'x')[1]);
    options.copy_engine_bytes = std::stoull(copy_engine);
    options.kernel_slot_bytes = std::stoull(Split(kernel_slots, 'x')[0]);
    options.kernel_min_chunk_bytes = std::stoull(Split(kernel_slots, 'x')[1]);
    options.flagged_slot_bytes = std::stoull(flagged);
    options.gpu_writes_memory = coherence == "memory";
    options.flush_threads = std::stoi(flush_threads);
    options.flush_piece_bytes = std::stoull(flush_pieces);
    options.copy_engine_bytes_aside = std::stoull(aside);
    options.copy_pipelines = std::stoi(Split(copies, 'x')[0]);
    options.copy_min_chunk_bytes = std::stoull(Split(copies, 'x')[1]);
    return options;
  }
};

inline std::vector<Setting> Settings(const Flags& flags) {
  std::vector<Setting> settings = {{}};
  auto with_each = [&](const std::vector<std::string>& values,
                       std::string Setting::* field) {
    std::vector<Setting> more;
    for (const Setting& setting : settings) {
      for (const std::string& value : values) {
        more.push_back(setting);
        more.back().*field = value;
      }
    }
    settings = std::move(more);
  };
  with_each(flags.slots, &Setting::slots);
  with_each(flags.shapes, &Setting::shape);
  with_each(flags.copy_engine, &Setting::copy_engine);
  with_each(flags.kernel_slots, &Setting::kernel_slots);
  with_each(flags.flagged, &Setting::flagged);
  with_each(flags.coherence, &Setting::coherence);
  with_each(flags.flush_threads, &Setting::flush_threads);
  with_each(flags.flush_pieces, &Setting::flush_pieces);
  with_each(flags.started, &Setting::started);
  with_each(flags.aside, &Setting::aside);
  with_each(flags.copies, &Setting::copies);
  return settings;
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_BENCH_CUDA_DEVICE_SETTINGS_H_
