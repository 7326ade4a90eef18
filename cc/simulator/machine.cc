#include "cc/simulator/machine.h"

namespace jax_cxl::sim {

Resources::Resources(const Machine& machine)
    : gpus_per_host_(machine.gpus_per_host),
      links_per_host_(machine.links_per_host),
      uplinks_(machine.ranks() * kPerRank),
      cards_(uplinks_ + machine.hosts * machine.links_per_host * kPerLink),
      rates_(cards_ + machine.cards * kPerCard) {
  for (int rank = 0; rank < machine.ranks(); ++rank) {
    rates_[GpuOut(rank)] = machine.gpu_out;
    rates_[GpuIn(rank)] = machine.gpu_in;
    rates_[Memory(rank)] = machine.memory;
    rates_[UplinkOut(rank)] = rates_[UplinkIn(rank)] = machine.uplink;
  }
  for (int card = 0; card < machine.cards; ++card) {
    rates_[CardIn(card)] = machine.card_in;
    rates_[CardOut(card)] = machine.card_out;
    rates_[CardBoth(card)] = machine.card_both;
  }
}

std::string Resources::Name(int resource) const {
  auto name = [](const char* what, int index) {
    return what + std::to_string(index);
  };
  if (resource < uplinks_) {
    constexpr const char* kNames[] = {"copies out of rank ",
                                      "copies into rank ", "memory of rank "};
    return name(kNames[resource % kPerRank], resource / kPerRank);
  }
  if (resource < cards_) {
    constexpr const char* kNames[] = {"uplink out of host ",
                                      "uplink into host "};
    const int link = (resource - uplinks_) / kPerLink;
    std::string text =
        name(kNames[(resource - uplinks_) % kPerLink], link / links_per_host_);
    if (links_per_host_ > 1) text += name(", link ", link % links_per_host_);
    return text;
  }
  constexpr const char* kNames[] = {"writes of card ", "reads of card ",
                                    "reads and writes of card "};
  const int index = resource - cards_;
  return name(kNames[index % kPerCard], index / kPerCard);
}

}  // namespace jax_cxl::sim
