#ifndef JAX_CXL_SIMULATOR_MACHINE_H_
#define JAX_CXL_SIMULATOR_MACHINE_H_

#include <string>
#include <vector>

// The machine of the model. The caller provides every number
// (lab/simulator/constants.py has them with their sources).
namespace jax_cxl::sim {

// Rates in bytes per second.
struct Machine {
  int hosts = 1;
  int gpus_per_host = 1;
  int links_per_host = 1;  // to the switch; the GPUs share them evenly
  int cards = 1;           // pool devices
  double gpu_out = 1;      // a GPU's copies to the pool
  double gpu_in = 1;    // and from the pool, in the other direction of its link
  double uplink = 1;    // one link of a host, each direction
  double card_in = 1;   // writes of one card
  double card_out = 1;  // reads of one card
  double card_both = 1;  // reads and writes of one card together
  double memory = 1;     // a GPU's own memory

  int ranks() const { return hosts * gpus_per_host; }
};

// Times in seconds, unless the comment of a field gives another unit.
struct Costs {
  double start = 0;        // from the call to the first step
  double get_latency = 0;  // until a read delivers; later copies hide it
  double ring = 0;         // until all data before a doorbell are visible
  double doorbell = 0;     // from ringing until a poll can see it
  double poll = 0;         // until a poll of a rung doorbell returns
  // The rates at which processors write lines back before a doorbell rings, and
  // drop lines before they are read, in bytes per second for each rank. 0: the
  // lines need not be written back or dropped. Copies of other lines continue
  // meanwhile.
  double write_back_rate = 0;
  double drop_rate = 0;
  double doorbell_bytes = 0;  // bytes that a poll of one peer reads
};

// The resources that flows share, by index.
class Resources {
 public:
  explicit Resources(const Machine& machine);

  int GpuOut(int rank) const { return rank * kPerRank; }
  int GpuIn(int rank) const { return rank * kPerRank + 1; }
  int Memory(int rank) const { return rank * kPerRank + 2; }
  int UplinkOut(int rank) const { return Uplink(rank); }
  int UplinkIn(int rank) const { return Uplink(rank) + 1; }
  int CardIn(int card) const { return cards_ + card * kPerCard; }
  int CardOut(int card) const { return cards_ + card * kPerCard + 1; }
  int CardBoth(int card) const { return cards_ + card * kPerCard + 2; }

  int size() const { return static_cast<int>(rates_.size()); }
  const std::vector<double>& rates() const { return rates_; }
  // Returns a text like "reads of card 3", for messages.
  std::string Name(int resource) const;

 private:
  static constexpr int kPerRank = 3, kPerLink = 2, kPerCard = 3;

  int Uplink(int rank) const {
    const int host = rank / gpus_per_host_, gpu = rank % gpus_per_host_;
    const int link =
        host * links_per_host_ + gpu * links_per_host_ / gpus_per_host_;
    return uplinks_ + link * kPerLink;
  }

  int gpus_per_host_;
  int links_per_host_;
  int uplinks_;
  int cards_;
  std::vector<double> rates_;
};

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_SIMULATOR_MACHINE_H_
