// Writes one request's answers as its API wants them: server-sent events while
// they come, or one JSON body at the end.
//
// Call start() once, event() for each thing that happens to a choice in order,
// then finish() or fail() once; each appends to `out` what may be sent now. A
// whole body is appended by finish() alone. Bodies do not depend on how the
// deltas are cut, and a stream's deltas joined are the whole body's texts. A
// choice that was cancelled or failed has no finish in these APIs: call fail()
// (and, when nothing was sent yet, answer with error_body and its status).
// One thread at a time; no I/O, no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/answer_event.h"
#include "serve/api_error.h"
#include "serve/api_request.h"

namespace galley::serve {

struct AnswerHead {
  std::string id;             // unique, of letters and digits; each API puts its prefix before it
  int64_t created = 0;        // Unix seconds
  std::string model;          // the name to answer with
  std::string fingerprint;    // of the build and the weights; may be empty
  int64_t prompt_tokens = 0;  // known before the first token; over all prompts
  std::vector<std::string> echo_texts;  // with echo: each prompt as text
};

class AnswerEncoder {
 public:
  virtual ~AnswerEncoder() = default;

  virtual void start(std::string& out) = 0;
  // choice < request.choice_count(): prompt index * n + answer index.
  virtual void event(int32_t choice, const AnswerEvent& event, std::string& out) = 0;
  virtual void finish(const AnswerUsage& usage, std::string& out) = 0;
  // Ends a stream with an error that its clients understand.
  virtual void fail(const ApiError& error, std::string& out) = 0;
};

// By request.api and request.stream.
std::unique_ptr<AnswerEncoder> make_answer_encoder(const ApiRequest& request, AnswerHead head);

// "text/event-stream" or "application/json".
std::string_view content_type(const ApiRequest& request);

// A comment line that keeps a stream's connection alive and changes nothing.
void append_sse_comment(std::string& out, std::string_view text);

}  // namespace galley::serve
