// Ranks that are threads of this process: on one host's memory, or on the cards of one host that
// reach each other's memory (kernels::cuda::reach_device), where an address means the same to all.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "cluster/collectives.h"

namespace galley::cluster {

class LocalRanks {
 public:
  explicit LocalRanks(int32_t size);

  // Rank `rank`, once; outlived by this. When it is destroyed the rank has left, and whoever waits
  // for it gets an error.
  std::unique_ptr<Collectives> join(int32_t rank);

 private:
  class Rank;

  Result<std::vector<int64_t>> meet(int32_t rank, int64_t value);
  void leave();

  const int32_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t arrived_ = 0;
  uint64_t meeting_ = 0;
  bool left_ = false;
  std::vector<int64_t> values_;  // of the meeting that is gathering
  std::vector<int64_t> result_;  // of the last one: nobody can end another before all took it
};

}  // namespace galley::cluster
