#include "kernels/host_expert_sharing.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "kernels/number_formats.h"

namespace galley::kernels {
namespace {

constexpr std::chrono::seconds kPatience{60};  // for a rank that computes, not for one that failed

// Rows x, then their choices, then the choices' weights.
struct Input {
  Bf16* x;
  int32_t* experts;
  float* weights;
};

class HostExpertSharing final : public ExpertSharing {
 public:
  explicit HostExpertSharing(Ops& ops) : ops_(ops) {}

  Result<void> reserve(const StepBounds& bounds, const ExpertSpread& spread,
                       int64_t rows_max) override {
    spread_ = spread;
    hidden_ = bounds.hidden;
    top_k_ = bounds.experts_per_token;
    const auto pairs = static_cast<size_t>(rows_max * top_k_);
    shared_.resize(static_cast<size_t>(rows_max * hidden_));
    pair_.reserve(pairs);
    chosen_.reserve(pairs);
    weight_.reserve(pairs);
    x_.resize(pairs * static_cast<size_t>(hidden_));
    y_.resize(pairs * static_cast<size_t>(hidden_));
    return {};
  }

  int64_t input_bytes(int64_t rows) const override { return rows * (2 * hidden_ + 8 * top_k_); }
  int64_t parts_bytes(int64_t rows) const override { return rows * top_k_ * 2 * hidden_; }

  void pack(Rows<const Bf16> x, Rows<const int32_t> experts, Rows<const float> weights,
            std::byte* input) override {
    const Input to = input_at(input, x.rows);
    for (int64_t row = 0; row < x.rows; ++row) {
      std::copy_n(x.row(row), hidden_, to.x + row * hidden_);
      std::copy_n(experts.row(row), top_k_, to.experts + row * top_k_);
      std::copy_n(weights.row(row), top_k_, to.weights + row * top_k_);
    }
  }

  void compute_shared(const MoeWeights& layer, Rows<const Bf16> x,
                      const std::byte* /*input*/) override {
    const MoeWeights alone{
        .experts = {}, .shared = layer.shared, .swiglu_limit = layer.swiglu_limit};
    ops_.moe(x, alone, Rows<const int32_t>(nullptr, x.rows, 0),
             Rows<const float>(nullptr, x.rows, 0), Rows<Bf16>(shared_.data(), x.rows, hidden_));
  }

  void compute_inner(const MoeWeights& /*layer*/, std::span<const std::byte* const> inputs,
                     std::span<const int64_t> rows) override {
    inputs_.assign(inputs.begin(), inputs.end());  // moe() is one call
    rows_.assign(rows.begin(), rows.end());
  }

  void compute_parts(const MoeWeights& layer, int32_t r, std::byte* parts) override {
    const int64_t rows = rows_[static_cast<size_t>(r)];
    const Input from = input_at(const_cast<std::byte*>(inputs_[static_cast<size_t>(r)]), rows);
    pair_.clear();
    chosen_.clear();
    weight_.clear();
    for (int64_t pair = 0; pair < rows * top_k_; ++pair) {
      const int32_t expert = from.experts[pair] - spread_.first();
      if (expert < 0 || expert >= spread_.each) continue;
      std::copy_n(from.x + pair / top_k_ * hidden_, hidden_, x_.data() + count() * hidden_);
      pair_.push_back(pair);
      chosen_.push_back(expert);
      weight_.push_back(from.weights[pair]);
    }
    if (pair_.empty()) return;
    const MoeWeights routed{
        .experts = layer.experts, .shared = {}, .swiglu_limit = layer.swiglu_limit};
    ops_.moe(Rows<const Bf16>(x_.data(), count(), hidden_), routed,
             Rows<const int32_t>(chosen_.data(), count(), 1),
             Rows<const float>(weight_.data(), count(), 1),
             Rows<Bf16>(y_.data(), count(), hidden_));
    auto* to = reinterpret_cast<Bf16*>(parts);
    for (int64_t i = 0; i < count(); ++i) {
      std::copy_n(y_.data() + i * hidden_, hidden_, to + pair_[static_cast<size_t>(i)] * hidden_);
    }
  }

  void combine(Rows<const int32_t> experts, std::span<const std::byte* const> parts,
               Rows<Bf16> y) override {
    for (int64_t row = 0; row < y.rows; ++row) {
      for (int64_t i = 0; i < hidden_; ++i) {
        float sum = 0.0F;
        for (int32_t choice = 0; choice < top_k_; ++choice) {
          const auto owner = static_cast<size_t>(experts.row(row)[choice] / spread_.each);
          const auto* part = reinterpret_cast<const Bf16*>(parts[owner]);
          sum += to_f32(part[(row * top_k_ + choice) * hidden_ + i]);
        }
        y.row(row)[i] = to_bf16(sum + to_f32(shared_[static_cast<size_t>(row * hidden_ + i)]));
      }
    }
  }

  void send_input(const std::byte* input, int64_t rows, std::byte* to) override {
    std::memcpy(to, input, static_cast<size_t>(input_bytes(rows)));
  }
  void send_parts(const std::byte* parts, int64_t rows, std::byte* to) override {
    std::memcpy(to, parts, static_cast<size_t>(parts_bytes(rows)));
  }

  void raise(RankFlag* own, RankFlag* other) override {
    std::atomic_ref(other->raised).store(++own->sent, std::memory_order_release);
  }
  void await(RankFlag* own) override {
    const uint64_t wanted = ++own->awaited;
    const auto begin = std::chrono::steady_clock::now();
    while (std::atomic_ref(own->raised).load(std::memory_order_acquire) < wanted) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() - begin < kPatience) continue;
      failure_ = Error{ErrorCode::kIo,
                       "another rank sent nothing for " + std::to_string(kPatience.count()) + " s"};
      return;
    }
  }

  Result<void> status() const override {
    if (failure_) return *failure_;
    return {};
  }

 private:
  Input input_at(std::byte* input, int64_t rows) const {
    Input at{};
    at.x = reinterpret_cast<Bf16*>(input);
    at.experts = reinterpret_cast<int32_t*>(at.x + rows * hidden_);
    at.weights = reinterpret_cast<float*>(at.experts + rows * top_k_);
    return at;
  }
  int64_t count() const { return static_cast<int64_t>(pair_.size()); }

  Ops& ops_;
  ExpertSpread spread_;
  int64_t hidden_ = 0;
  int64_t top_k_ = 0;
  std::vector<Bf16> shared_;
  std::vector<const std::byte*> inputs_;
  std::vector<int64_t> rows_;
  // Of one call: the pairs (row, choice) that are computed here.
  std::vector<int64_t> pair_;
  std::vector<int32_t> chosen_;
  std::vector<float> weight_;
  std::vector<Bf16> x_;
  std::vector<Bf16> y_;
  std::optional<Error> failure_;
};

}  // namespace

std::unique_ptr<ExpertSharing> make_host_sharing(Ops& ops) {
  return std::make_unique<HostExpertSharing>(ops);
}

}  // namespace galley::kernels
