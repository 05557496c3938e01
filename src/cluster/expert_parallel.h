// kernels::Ops of one rank of an expert-parallel group: every rank has its own sequences and the
// whole model but for the experts, of which it has its share; moe() is where ranks meet.
//
// A layer: rows are packed and sent to every other rank (dispatch) while the shared expert
// computes; then each rank computes the experts' inner values of all ranks' rows together, the
// results of the others' rows, and sends those back (combine) while it computes the results of its
// own. So both transfers pass under products. Results are summed by the row's own rank in the order
// of its choices: the bits are those of one rank with all experts.
//
// Hosts meet before they hand over a wait: what a kernel waits for is then on its way already and
// needs no host, which may be held up by a driver that waits for that kernel (an allocation, a
// kernel that is loaded). Steps that a backend hands over as a whole need both done beforehand.
//
// Every buffer is used once a layer, and no rank can be a layer ahead: to finish a layer it needs
// the others' results, which they send behind everything that read or wrote the buffers before.
//
// Knows neither devices nor streams: order is that of ExpertSharing. An error of the group is told
// by finish() and is final. Owned by the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "cluster/collectives.h"
#include "kernels/expert_sharing.h"
#include "kernels/forwarding_ops.h"

namespace galley::cluster {

class ExpertParallelOps final : public kernels::ForwardingOps {
 public:
  // A step's options want expert_first and expert_count of `spread()`. Both arguments outlive the
  // result. kUnsupported if the backend cannot, kInvalid if experts do not divide by ranks.
  static Result<std::unique_ptr<ExpertParallelOps>> create(kernels::Ops& inner, Collectives& ranks,
                                                           int32_t routed_experts);
  ~ExpertParallelOps() override;

  const kernels::ExpertSpread& spread() const { return spread_; }

  // A meeting of the ranks, as the creation of a step is.
  Result<void> reserve(const kernels::StepBounds& bounds) override;
  Result<void> finish() override;
  bool joins_ranks() const override { return true; }
  bool overlaps_steps() const override { return false; }  // ranks meet within a step

  void moe(kernels::Rows<const kernels::Bf16> x, const kernels::MoeWeights& weights,
           kernels::Rows<const int32_t> experts, kernels::Rows<const float> expert_weights,
           kernels::Rows<kernels::Bf16> y) override;

  // Nanoseconds for which kernels of a device waited for other ranks since the step was created,
  // for rows and for results.
  struct Waits {
    uint64_t input_ns = 0;
    uint64_t parts_ns = 0;
  };
  Waits waits();

 private:
  // What a rank keeps for each other one.
  struct Flags {
    kernels::RankFlag input;
    kernels::RankFlag parts;
  };

  ExpertParallelOps(kernels::Ops& inner, Collectives& ranks, kernels::ExpertSpread spread)
      : ForwardingOps(inner), ranks_(ranks), spread_(spread), sharing_(*inner.sharing()) {}

  // All ranks are here; false: one is not, and failure_ says so.
  bool meet(int64_t rows);
  // In the room of rank `at`, what is there of or for rank `of`.
  Flags* flags(int32_t at, int32_t of) const;
  std::byte* input_room(int32_t at, int32_t of) const;
  std::byte* parts_room(int32_t at, int32_t of) const;
  int32_t place(int32_t at, int32_t of) const { return of < at ? of : of - 1; }

  Collectives& ranks_;
  const kernels::ExpertSpread spread_;
  kernels::ExpertSharing& sharing_;
  int64_t rows_max_ = 0;  // of any rank
  int64_t input_bytes_ = 0;
  int64_t parts_bytes_ = 0;
  kernels::MemoryBlock room_;           // what others write to: flags, rows, results
  kernels::MemoryBlock input_;          // own rows
  kernels::MemoryBlock parts_;          // results: of others' rows by place, then of own
  std::vector<std::byte*> rooms_;       // by rank
  std::vector<int64_t> rows_;           // by rank, of the last meeting
  std::vector<const std::byte*> from_;  // rows, then results by rank, of a call
  std::optional<Error> failure_;
};

}  // namespace galley::cluster
