#include "serve/api_answer.h"

#include <utility>

#include "serve/api_answer_parts.h"

namespace galley::serve {

std::unique_ptr<AnswerEncoder> make_answer_encoder(const ApiRequest& request, AnswerHead head) {
  switch (request.api) {
    case Api::kChat:
      return make_chat_encoder(request, std::move(head));
    case Api::kCompletions:
      return make_completion_encoder(request, std::move(head));
    case Api::kResponses:
      return make_responses_encoder(request, std::move(head));
    case Api::kMessages:
      return make_messages_encoder(request, std::move(head));
  }
  CHECK(false);
}

std::string_view content_type(const ApiRequest& request) {
  return request.stream ? "text/event-stream" : "application/json";
}

void append_sse_comment(std::string& out, std::string_view text) {
  out += ": ";
  for (const char c : text) out += c == '\n' || c == '\r' ? ' ' : c;
  out += "\n\n";
}

}  // namespace galley::serve
