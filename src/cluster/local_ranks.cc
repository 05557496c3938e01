#include "cluster/local_ranks.h"

#include <chrono>
#include <string>

#include "base/check.h"

namespace galley::cluster {
namespace {

// For a rank that computes or loads weights, not for one that hangs.
constexpr std::chrono::minutes kPatience{10};

}  // namespace

class LocalRanks::Rank final : public Collectives {
 public:
  Rank(LocalRanks& all, int32_t rank) : all_(all), rank_(rank) {}
  ~Rank() override { all_.leave(); }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return all_.size_; }

  Result<std::vector<int64_t>> exchange(int64_t value) override { return all_.meet(rank_, value); }

  Result<std::vector<std::byte*>> share(std::byte* room) override {
    const auto address = static_cast<int64_t>(reinterpret_cast<intptr_t>(room));
    std::vector<std::byte*> rooms;
    for (const int64_t one : TRY(all_.meet(rank_, address))) {
      rooms.push_back(reinterpret_cast<std::byte*>(static_cast<intptr_t>(one)));
    }
    return rooms;
  }

 private:
  LocalRanks& all_;
  const int32_t rank_;
};

LocalRanks::LocalRanks(int32_t size) : size_(size), values_(static_cast<size_t>(size)) {
  CHECK(size > 0);
}

std::unique_ptr<Collectives> LocalRanks::join(int32_t rank) {
  CHECK(rank >= 0 && rank < size_);
  return std::make_unique<Rank>(*this, rank);
}

Result<std::vector<int64_t>> LocalRanks::meet(int32_t rank, int64_t value) {
  std::unique_lock lock(mutex_);
  const auto ended = [rank] {
    return Error{ErrorCode::kIo,
                 "rank " + std::to_string(rank) + ": another rank of the group has ended"};
  };
  if (left_) return ended();
  const uint64_t meeting = meeting_;
  values_[static_cast<size_t>(rank)] = value;
  if (++arrived_ == size_) {
    arrived_ = 0;
    ++meeting_;
    result_ = values_;
    changed_.notify_all();
    return result_;
  }
  const bool in_time =
      changed_.wait_for(lock, kPatience, [&] { return meeting_ != meeting || left_; });
  if (meeting_ != meeting) return result_;
  if (in_time) return ended();
  left_ = true;  // this rank gives up, and nobody is to wait for it
  changed_.notify_all();
  return Error{ErrorCode::kIo,
               "rank " + std::to_string(rank) + ": another rank of the group hangs"};
}

void LocalRanks::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

}  // namespace galley::cluster
