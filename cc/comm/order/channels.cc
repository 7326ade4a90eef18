#include "cc/comm/order/channels.h"

#include <algorithm>
#include <utility>

namespace jax_cxl::comm {

Channels::Channels(pool::Pool* pool, Peers* peers, Recorder* recorder,
                   Arena* arena, const Options& options)
    : pool_(pool),
      peers_(peers),
      recorder_(recorder),
      arena_(arena),
      options_(options) {}

Channel* Channels::Find(const std::vector<int32_t>& members) const {
  for (Channel* channel : open_)
    if (channel->members() == members) return channel;
  const auto found = all_.find(HashGroup(members));
  return found != all_.end() && found->second->members() == members
             ? found->second.get()
             : nullptr;
}

Result<Channel*> Channels::Add(const Group& group) {
  auto channel =
      std::make_unique<Channel>(pool_, peers_, recorder_, options_, group);
  const auto [added, is_new] =
      all_.try_emplace(channel->key(), std::move(channel));
  if (!is_new)
    return Error(Code::kInternal,
                 "two groups of ranks have the same hash: please report this "
                 "to jax_cxl");
  return added->second.get();
}

Status Channels::Use(Channel* channel) {
  channel->set_last_use(++uses_);
  if (channel->open()) return OkStatus();
  if (std::ranges::find(waiting_, channel) == waiting_.end())
    waiting_.push_back(channel);
  return OpenWaiting();
}

Status Channels::OpenWaiting() {
  while (!waiting_.empty()) {
    Channel* channel = waiting_.front();
    const Result<pool::ChannelPlace> place = TakeMemory(*channel);
    if (!place.ok() && open_.empty()) return place.status();
    if (!place.ok()) break;
    CXL_RETURN_IF_ERROR(channel->Open(*place));
    waiting_.pop_front();
    open_.push_back(channel);
  }
  if (waiting_.empty()) return OkStatus();
  const uint64_t needed =
      NeededPoolBytes(*pool_, options_, open_.size() + waiting_.size());
  for (Channel* channel : waiting_) channel->set_needed_pool(needed);
  return OkStatus();
}

Result<pool::ChannelPlace> Channels::TakeMemory(const Channel& channel) {
  if (full_.ok() && open_.size() < pool::kMaxChannels) {
    Result<pool::ChannelPlace> place = channel.Allocate(arena_);
    if (place.ok()) return place;
    full_ = place.status();
  }
  Channel* oldest = nullptr;
  for (Channel* candidate : open_)
    if ((oldest == nullptr || candidate->last_use() < oldest->last_use()) &&
        candidate->CanClose())
      oldest = candidate;
  if (oldest == nullptr) return full_;
  std::erase(open_, oldest);
  return oldest->Close();
}

}  // namespace jax_cxl::comm
