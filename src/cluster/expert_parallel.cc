#include "cluster/expert_parallel.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace galley::cluster {
namespace {

using kernels::MemoryBlock;

constexpr int64_t kAlignment = 1024;
constexpr int64_t kFlagsBytes = kAlignment;  // of one other rank
constexpr int64_t kLeaves = -1;              // instead of a number of rows

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Result<std::unique_ptr<ExpertParallelOps>> ExpertParallelOps::create(kernels::Ops& inner,
                                                                     Collectives& ranks,
                                                                     int32_t routed_experts) {
  if (inner.sharing() == nullptr) {
    return Error{ErrorCode::kUnsupported, "experts cannot be shared by several ranks on backend " +
                                              std::string(inner.name())};
  }
  if (routed_experts % ranks.size() != 0) {
    return Error{ErrorCode::kInvalid, std::to_string(routed_experts) +
                                          " experts do not divide by " +
                                          std::to_string(ranks.size()) + " ranks"};
  }
  return std::unique_ptr<ExpertParallelOps>(new ExpertParallelOps(
      inner, ranks,
      {.rank = ranks.rank(), .ranks = ranks.size(), .each = routed_experts / ranks.size()}));
}

ExpertParallelOps::~ExpertParallelOps() {
  // Nobody writes to a room that is gone: all are through with it, or one has left.
  if (room_.bytes() > 0 && !failure_) static_cast<void>(ranks_.exchange(kLeaves));
}

Result<void> ExpertParallelOps::reserve(const kernels::StepBounds& bounds) {
  kernels::StepBounds rest = bounds;
  rest.moe = {};  // their working memory is the sharing's
  TRY(inner().reserve(rest));
  const std::vector<int64_t> rows = TRY(ranks_.exchange(bounds.rows));
  rows_max_ = *std::ranges::max_element(rows);
  TRY(sharing_.reserve(bounds, spread_, rows_max_));
  input_bytes_ = aligned(sharing_.input_bytes(rows_max_));
  parts_bytes_ = aligned(sharing_.parts_bytes(rows_max_));
  const int64_t others = spread_.ranks - 1;
  kernels::Memory& memory = inner().memory();
  room_ = TRY(MemoryBlock::create(memory, others * (kFlagsBytes + input_bytes_ + parts_bytes_),
                                  "rows and results of other ranks"));
  input_ = TRY(MemoryBlock::create(memory, input_bytes_, "rows for other ranks"));
  parts_ = TRY(MemoryBlock::create(memory, spread_.ranks * parts_bytes_, "results of experts"));
  const std::vector<std::byte> zeros(static_cast<size_t>(others * kFlagsBytes));
  memory.write(room_.data(), zeros.data(), std::ssize(zeros));
  rooms_ = TRY(ranks_.share(room_.data()));
  from_.resize(static_cast<size_t>(spread_.ranks));
  return {};
}

Result<void> ExpertParallelOps::finish() {
  if (failure_) return *failure_;
  TRY(inner().finish());
  return sharing_.status();
}

ExpertParallelOps::Flags* ExpertParallelOps::flags(int32_t at, int32_t of) const {
  return reinterpret_cast<Flags*>(rooms_[static_cast<size_t>(at)] + place(at, of) * kFlagsBytes);
}
std::byte* ExpertParallelOps::input_room(int32_t at, int32_t of) const {
  return rooms_[static_cast<size_t>(at)] + (spread_.ranks - 1) * kFlagsBytes +
         place(at, of) * input_bytes_;
}
std::byte* ExpertParallelOps::parts_room(int32_t at, int32_t of) const {
  return rooms_[static_cast<size_t>(at)] + (spread_.ranks - 1) * (kFlagsBytes + input_bytes_) +
         place(at, of) * parts_bytes_;
}

bool ExpertParallelOps::meet(int64_t rows) {
  Result<std::vector<int64_t>> met = ranks_.exchange(rows);
  if (met && std::ranges::find(*met, kLeaves) == met->end()) {
    rows_ = *std::move(met);
    return true;
  }
  failure_ = !met ? met.error()
                  : Error{ErrorCode::kIo, "rank " + std::to_string(spread_.rank) +
                                              ": another rank of the group has ended"};
  return false;
}

void ExpertParallelOps::moe(kernels::Rows<const kernels::Bf16> x,
                            const kernels::MoeWeights& weights,
                            kernels::Rows<const int32_t> experts,
                            kernels::Rows<const float> expert_weights,
                            kernels::Rows<kernels::Bf16> y) {
  static_assert(sizeof(Flags) <= kFlagsBytes);
  if (failure_) return;
  CHECK(x.rows <= rows_max_ && std::ssize(weights.experts) == spread_.each);
  if (!meet(x.rows)) return;
  const int32_t self = spread_.rank;
  const auto each_other = [&](const auto& visit) {
    // Others in turn from the next rank on, so that not all begin with the same one.
    for (int32_t i = 1; i < spread_.ranks; ++i) visit((self + i) % spread_.ranks);
  };

  if (x.rows > 0) sharing_.pack(x, experts, expert_weights, input_.data());
  each_other([&](int32_t other) {
    if (x.rows > 0) sharing_.send_input(input_.data(), x.rows, input_room(other, self));
    sharing_.raise(&flags(self, other)->input, &flags(other, self)->input);
  });
  if (x.rows > 0) sharing_.compute_shared(weights, x, input_.data());
  if (!meet(x.rows)) return;
  each_other([&](int32_t other) {
    sharing_.await(&flags(self, other)->input);
    from_[static_cast<size_t>(other)] = input_room(self, other);
  });
  from_[static_cast<size_t>(self)] = input_.data();
  sharing_.compute_inner(weights, from_, rows_);
  each_other([&](int32_t other) {
    const int64_t theirs = rows_[static_cast<size_t>(other)];
    std::byte* parts = parts_.data() + place(self, other) * parts_bytes_;
    if (theirs > 0) {
      sharing_.compute_parts(weights, other, parts);
      sharing_.send_parts(parts, theirs, parts_room(other, self));
    }
    sharing_.raise(&flags(self, other)->parts, &flags(other, self)->parts);
  });
  std::byte* own = parts_.data() + (spread_.ranks - 1) * parts_bytes_;
  if (x.rows > 0) sharing_.compute_parts(weights, self, own);
  if (!meet(x.rows)) return;
  each_other([&](int32_t other) {
    sharing_.await(&flags(self, other)->parts);
    from_[static_cast<size_t>(other)] = parts_room(self, other);
  });
  from_[static_cast<size_t>(self)] = own;
  if (x.rows > 0) sharing_.combine(experts, from_, y);
}

ExpertParallelOps::Waits ExpertParallelOps::waits() {
  Waits waits;
  for (int32_t other = 0; other < spread_.ranks; ++other) {
    if (other == spread_.rank || rooms_.empty()) continue;
    Flags one;
    inner().memory().read(&one, flags(spread_.rank, other), sizeof one);
    waits.input_ns += one.input.waited_ns;
    waits.parts_ns += one.parts.waited_ns;
  }
  return waits;
}

}  // namespace galley::cluster
