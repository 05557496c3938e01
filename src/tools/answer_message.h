// An answer as a message: reasoning, content and tool calls apart, in the shape
// in which a conversation takes it back.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>

#include "model/tokenizer.h"
#include "serve/codec.h"

namespace galley::tools {

nlohmann::ordered_json answer_message(const model::Tokenizer& tokenizer,
                                      const serve::ChatCodec& codec, const serve::Prompt& prompt,
                                      std::span<const int32_t> ids);

}  // namespace galley::tools
