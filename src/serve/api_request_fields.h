// What the parsers of the four APIs share: opening a body, the settings all of
// them know, and the account of fields that nobody knows.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "serve/api_request.h"

namespace galley::serve {

constexpr size_t kBodyBytesMax = size_t{32} << 20;
constexpr int32_t kBodyDepthMax = 64;
// Three million token ids, or two hundred thousand fields.
constexpr size_t kBodyTreeBytesMax = size_t{96} << 20;
constexpr size_t kNameBytesMax = 512;  // of models, users and the like

// A whole body: one JSON object, no key twice.
Result<JsonDocument> parse_body(std::string_view body);

// A string of at most kNameBytesMax bytes; empty when not given.
Result<std::string> read_name(const JsonValue& object, std::string_view key);

// model, sampling, seed, stream, user and priority, in every API's spelling. Sampling is checked
// but for the vocabulary.
Result<void> read_common(const JsonValue& body, ApiRequest& request);

// ignore_eos and min_tokens, as load generators ask for answers of a length; after
// output_tokens_max was read.
Result<void> read_length_wishes(const JsonValue& body, ApiRequest& request);

// OpenAI's stream_options, which mean something only while streaming.
Result<void> read_stream_options(const JsonValue& body, ApiRequest& request);

// Names the given members of `object` that are not `known`, nor what read_common reads.
void note_unknown(const JsonValue& object, std::initializer_list<std::string_view> known,
                  ApiRequest& request, bool also_common = false);
// Names one field that is understood but changes nothing here.
void note_ignored(const JsonValue& field, ApiRequest& request);

// kUnsupported "PATH: REASON" when any of `keys` is given and neither false nor empty.
Result<void> refuse(const JsonValue& object, std::initializer_list<std::string_view> keys,
                    std::string_view reason);
Error unsupported(const JsonValue& field, std::string_view reason);

}  // namespace galley::serve
