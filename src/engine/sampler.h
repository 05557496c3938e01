// Chooses a sequence's next token from its row of logits.
//
// The random stream belongs to the request: one draw is a function of (seed,
// stream, position), so batch mates, chunking and preemption never change a
// token. A sampler is one sequence's; the scratch is shared by all that one
// thread samples.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/sampling_options.h"
#include "kernels/drawn_token.h"

namespace galley::engine {

struct Sampled {
  int32_t token = 0;
  bool valid = false;  // false: the row had NaN or no finite logit; there is no token
  float logprob = 0;   // only if asked for
};

// Working memory for rows of up to `vocab_size` logits.
class SamplerScratch {
 public:
  explicit SamplerScratch(int32_t vocab_size);

 private:
  friend class Sampler;
  struct Candidate {
    float logit;
    float weight;
    int32_t token;
  };

  int32_t vocab_size_;
  std::vector<float> adjusted_;  // the row after penalties, bias and mask
  std::vector<float> block_max_;
  std::vector<float> block_sum_;
  std::vector<float> order_;  // block maxima to select in
  std::vector<Candidate> candidates_;
};

class Sampler {
 public:
  // Options were validated. Allocates here, so that sampling does not.
  Sampler(SamplingOptions options, int32_t vocab_size);

  // Prompt tokens count for the repetition penalty only; call in any chunks.
  void observe_prompt(std::span<const int32_t> tokens);
  // Tokens that another sampler of the same sequence produced before this one took over.
  void observe_output(std::span<const int32_t> tokens);

  // The token at `position` (tokens before it), which then counts as produced. `allowed`, if not
  // empty, has a bit per token, clear where it must not be chosen.
  Sampled sample(std::span<const float> logits, int64_t position, SamplerScratch& scratch,
                 std::span<const uint64_t> allowed = {});

  // How the token at `position` may be drawn elsewhere from the raw logits; none where they are
  // adjusted or reported. Such a token needs no telling: nothing counts it.
  std::optional<kernels::DrawRequest> plain_draw(int64_t position) const;

  // Of the last sample, best first; as many as the options asked for.
  std::span<const TokenLogprob> top_logprobs() const { return top_logprobs_; }

 private:
  using Candidate = SamplerScratch::Candidate;

  struct Seen {
    int32_t token;
    int32_t output_count;
  };

  bool holds_back(int64_t position) const { return position < options_.held_back_before; }
  bool adjusts(int64_t position) const {
    return !seen_.empty() || !options_.logit_bias.empty() || holds_back(position);
  }
  void adjust(std::span<float> logits, int64_t position) const;
  // Fills top_logprobs_ and returns the log of the sum of exp(logits).
  float report_logprobs(std::span<const float> logits, float peak, SamplerScratch& scratch);
  int32_t draw(std::span<const float> logits, float peak, int64_t position,
               SamplerScratch& scratch) const;
  // The candidates that the options leave, by token, whose weights the draw then shares.
  void keep_best(std::span<const float> logits, float peak, double total,
                 SamplerScratch& scratch) const;
  void note_output(int32_t token);

  SamplingOptions options_;
  std::vector<TokenLogprob> top_logprobs_;
  // Penalties only: where in seen_ a token stands, plus one; 0 = not seen.
  std::vector<int32_t> seen_index_;  // [vocab_size]
  std::vector<Seen> seen_;           // at most vocab_size, reserved
};

}  // namespace galley::engine
