// One line of a batch: what `galley batch` reads and writes, as plain values.
//
//   {"custom_id": "a", "prompt": "Once"}            text
//   {"custom_id": "b", "messages": [{...}]}         a conversation
//   {"custom_id": "c", "ids": [0, 17]}              tokens as they are
// besides optional settings (max_tokens, temperature, top_k, top_p, min_p,
// repetition_penalty, frequency_penalty, presence_penalty, logit_bias, seed,
// stop, stop_tokens). A line in the envelope of other batch services, with the
// request under "body", is taken as well. A field that would not be honoured is
// refused. Pure parsing: no tokenizer, no files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "serve/conversation.h"

namespace galley::serve {

constexpr size_t kBatchLineBytesMax = size_t{8} << 20;
constexpr size_t kBatchRecordBytesMax = size_t{64} << 20;
constexpr size_t kCustomIdBytesMax = 512;

struct BatchRequest {
  std::string custom_id;
  // Exactly one is set.
  std::optional<std::string> text;
  std::optional<Conversation> conversation;
  std::vector<int32_t> ids;

  std::optional<int32_t> output_tokens_max;
  std::vector<int32_t> stop_tokens;
  std::vector<std::string> stop_texts;
  engine::SamplingOptions sampling;
};

// `defaults` holds what the line does not say.
Result<BatchRequest> parse_batch_line(std::string_view line,
                                      const engine::SamplingOptions& defaults);

// The custom_id of a line that may be wrong otherwise; nothing when even that is missing.
std::optional<std::string> custom_id_of(std::string_view line);

// A finished line of the output, as far as resuming needs it.
struct BatchRecord {
  std::string custom_id;  // empty: a line without one
  bool failed = false;
  int64_t line_number = 0;  // of a failed line; from 1
  uint64_t line_hash = 0;   // of a failed line's bytes
};

Result<BatchRecord> parse_batch_record(std::string_view line);

// FNV-1a, 64 bits: tells whether a line that failed before has been changed since.
uint64_t hash_line(std::string_view line);

struct BatchAnswer {
  std::string text;
  std::vector<int32_t> ids;
  std::string finish_reason;
  int64_t prompt_tokens = 0;
};

// Whole lines with their line feed.
std::string answer_line(const std::string& custom_id, const BatchAnswer& answer);
std::string error_line(const std::optional<std::string>& custom_id, int64_t line_number,
                       uint64_t line_hash, std::string_view message);

}  // namespace galley::serve
