// kernels/expert_sharing.h on SM90: folded experts, and other ranks' memory that kernels and the
// copy engine of this device reach (reach_device).
//
// Operations go into the list that all others go into, so that a step of few rows with them can
// become a graph. Owned by the thread that calls the kernels.
#pragma once

#include <functional>
#include <utility>

#include "base/result.h"
#include "kernels/cuda/command_list.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_share.h"
#include "kernels/expert_sharing.h"
#include "kernels/memory.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

class CudaExpertSharing final : public ExpertSharing {
 public:
  // x in Q8, if it was made along with x (MadeTiles::take).
  using Made = std::function<InputTiles(Rows<const Bf16> x)>;

  // `settle` puts what was held back into the list, `added` is told that there is one command more;
  // `memory` and `commands` outlive this.
  CudaExpertSharing(Memory& memory, CommandList& commands, std::function<void()> settle,
                    std::function<void()> added, Made made)
      : memory_(memory),
        commands_(commands),
        settle_(std::move(settle)),
        added_(std::move(added)),
        made_(std::move(made)) {}
  ~CudaExpertSharing() override;
  CudaExpertSharing(const CudaExpertSharing&) = delete;
  CudaExpertSharing& operator=(const CudaExpertSharing&) = delete;

  Result<void> reserve(const StepBounds& bounds, const ExpertSpread& spread,
                       int64_t rows_max) override;
  int64_t input_bytes(int64_t rows) const override;
  int64_t parts_bytes(int64_t rows) const override;
  void pack(Rows<const Bf16> x, Rows<const int32_t> experts, Rows<const float> weights,
            std::byte* input) override;
  void compute_shared(const MoeWeights& layer, Rows<const Bf16> x, const std::byte* input) override;
  void compute_inner(const MoeWeights& layer, std::span<const std::byte* const> inputs,
                     std::span<const int64_t> rows) override;
  void compute_parts(const MoeWeights& layer, int32_t r, std::byte* parts) override;
  void combine(Rows<const int32_t> experts, std::span<const std::byte* const> parts,
               Rows<Bf16> y) override;
  void send_input(const std::byte* input, int64_t rows, std::byte* to) override;
  void send_parts(const std::byte* parts, int64_t rows, std::byte* to) override;
  void raise(RankFlag* own, RankFlag* other) override;
  void await(RankFlag* own) override;
  // A wait that is given up is an error of the device, which Ops::finish tells.
  Result<void> status() const override { return {}; }

 private:
  template <class Function, class... A>
  void enqueue(Function* function, const A&... arguments) {
    settle_();
    commands_.add_first(function, arguments...);
    added_();
  }
  uint8_t* work() const { return reinterpret_cast<uint8_t*>(work_.data()); }

  Memory& memory_;
  CommandList& commands_;
  std::function<void()> settle_;
  std::function<void()> added_;
  Made made_;
  InputTiles own_;  // of the rows that were packed last
  ExpertSpread spread_;
  ExpertShape shape_;
  int64_t rows_max_ = 0;
  RankInputs inputs_;  // of the call of compute_inner
  SideStream lane_;
  MemoryBlock work_;
};

}  // namespace galley::kernels::cuda
