// The parts of one layer of experts that several ranks share: what Ops::moe does in one call, taken
// apart where rows and results go to other ranks and come back.
//
// Rank r of n has the experts [r each, (r + 1) each) of every layer, and the shared expert. Rows on
// their way to the experts and results on their way back are opaque bytes of Ops::memory(), of
// sizes that are told here. A result is that of one choice of one row, bf16, so that the rows' own
// rank sums them in the order of the choices: the bits are those of Ops::moe with all experts.
//
// Everything happens in the order of the calls, as operations do, but for what is sent: that is
// read behind the operations before it, and those behind it do not wait. Who sends what to whom is
// cluster/expert_parallel.h. Owned by the thread that calls the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/tensor.h"

namespace galley::kernels {

struct MoeWeights;
struct StepBounds;

struct ExpertSpread {
  int32_t rank = 0;
  int32_t ranks = 1;
  int32_t each = 0;  // experts of a rank

  int32_t first() const { return rank * each; }
};

// One word that another rank writes, and what this rank knows of it; in memory(), zeroed at first.
// A rank has one for each other rank and kind of message.
struct RankFlag {
  uint64_t raised = 0;     // by the other rank: how often
  uint64_t awaited = 0;    // how often this rank waited for it
  uint64_t sent = 0;       // how often this rank raised the other's
  uint64_t waited_ns = 0;  // by kernels of a device, in all
};

class ExpertSharing {
 public:
  virtual ~ExpertSharing() = default;

  // Working memory for steps within these bounds, whatever rank has the most rows.
  // kUnsupported if a layer's experts are not stored as this needs them.
  virtual Result<void> reserve(const StepBounds& bounds, const ExpertSpread& spread,
                               int64_t rows_max) = 0;

  // After reserve(): of so many rows.
  virtual int64_t input_bytes(int64_t rows) const = 0;
  virtual int64_t parts_bytes(int64_t rows) const = 0;

  // Rows, their choices among all experts, and the choices' weights, as they travel.
  virtual void pack(Rows<const Bf16> x, Rows<const int32_t> experts, Rows<const float> weights,
                    std::byte* input) = 0;
  // The shared expert's results of the rows that were packed last; kept until combine().
  virtual void compute_shared(const MoeWeights& layer, Rows<const Bf16> x,
                              const std::byte* input) = 0;
  // What this rank's experts make of the rows of all ranks on the way to their results: inputs[r]
  // holds rows[r] rows of rank r. Kept until the next call.
  virtual void compute_inner(const MoeWeights& layer, std::span<const std::byte* const> inputs,
                             std::span<const int64_t> rows) = 0;
  // Results of those choices of rank r's rows that are this rank's experts.
  virtual void compute_parts(const MoeWeights& layer, int32_t r, std::byte* parts) = 0;
  // y = bf16(sum of the chosen experts' results ascending, then the shared one); parts[r] is what
  // rank r computed of these rows.
  virtual void combine(Rows<const int32_t> experts, std::span<const std::byte* const> parts,
                       Rows<Bf16> y) = 0;

  // Copies to another rank's memory; raise() comes behind what was sent before it. `own` is this
  // rank's flag for that other rank, `other` that rank's for this one.
  virtual void send_input(const std::byte* input, int64_t rows, std::byte* to) = 0;
  virtual void send_parts(const std::byte* parts, int64_t rows, std::byte* to) = 0;
  virtual void raise(RankFlag* own, RankFlag* other) = 0;
  // Operations behind this see what the other rank sent before it raised the flag once more than
  // this rank waited so far.
  virtual void await(RankFlag* own) = 0;

  // Whether a wait was given up; final.
  virtual Result<void> status() const = 0;
};

}  // namespace galley::kernels
