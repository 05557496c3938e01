// Service: the routes that need the tokenizer or the model.
#include <algorithm>
#include <utility>

#include "base/shown_text.h"
#include "server/service.h"

namespace galley::server {
namespace {

// What OpenAI's API gives when a completion does not say.
constexpr int64_t kCompletionTokens = 16;

// Where the API's requests hold the prompt.
std::string_view prompt_field(serve::Api api) {
  switch (api) {
    case serve::Api::kCompletions:
      return "prompt";
    case serve::Api::kResponses:
      return "input";
    case serve::Api::kChat:
    case serve::Api::kMessages:
      return "messages";
  }
  return "messages";
}

// The codec knows a conversation's messages, the client its field.
Error in_words_of(serve::Api api, Error error) {
  constexpr std::string_view kMessages = "messages:";
  if (error.message.starts_with(kMessages)) {
    error.message = std::string(prompt_field(api)) + error.message.substr(kMessages.size() - 1);
  }
  return error;
}

}  // namespace

// The call travels as a bare pointer: it belongs to the loop, and a copy that a worker still
// holds must not be the one that ends it.
void Service::on_worker(std::unique_ptr<Call> call, Prepare work,
                        void (Service::*then)(std::unique_ptr<Call>, Result<Prepared>)) {
  std::string body = std::move(call->exchange->request().body);
  const size_t bytes = body.size();
  Call* const travelling = call.release();
  const bool taken = workers_->post(bytes, [this, travelling, body = std::move(body),
                                            work = std::move(work), then, defaults = defaults_] {
    auto result = std::make_shared<Result<Prepared>>(work(body, *defaults));
    loop_->post([this, travelling, result, then] {
      --preparing_;
      (this->*then)(std::unique_ptr<Call>(travelling), std::move(*result));
    });
  });
  if (taken) {
    ++preparing_;
    return;
  }
  refuse(std::unique_ptr<Call>(travelling),
         {serve::ApiFault::kOverloaded, "too many requests arrive at once; try again", ""}, 1);
}

void Service::post_completions(std::unique_ptr<Call> call) {
  on_worker(
      std::move(call),
      [this](const std::string& body, const serve::RequestDefaults& defaults) {
        return prepare_completion(body, defaults);
      },
      &Service::start);
}

void Service::post_chat(std::unique_ptr<Call> call) {
  on_worker(
      std::move(call),
      [this](const std::string& body, const serve::RequestDefaults& defaults) {
        return prepare_conversation(serve::parse_chat_request(body, defaults));
      },
      &Service::start);
}

void Service::post_responses(std::unique_ptr<Call> call) {
  on_worker(
      std::move(call),
      [this](const std::string& body, const serve::RequestDefaults& defaults) {
        return prepare_conversation(serve::parse_responses_request(body, defaults));
      },
      &Service::start);
}

void Service::post_messages(std::unique_ptr<Call> call) {
  on_worker(
      std::move(call),
      [this](const std::string& body, const serve::RequestDefaults& defaults) {
        return prepare_conversation(serve::parse_messages_request(body, defaults));
      },
      &Service::start);
}

void Service::post_count_tokens(std::unique_ptr<Call> call) {
  on_worker(
      std::move(call),
      [this](const std::string& body, const serve::RequestDefaults& defaults) {
        return prepare_count(body, defaults);
      },
      &Service::reply_prepared);
}

void Service::post_tokenize(std::unique_ptr<Call> call) {
  on_worker(
      std::move(call),
      [this](const std::string& body, const serve::RequestDefaults& defaults) {
        return prepare_tokenize(body, defaults);
      },
      &Service::reply_prepared);
}

void Service::post_detokenize(std::unique_ptr<Call> call) {
  on_worker(
      std::move(call),
      [this](const std::string& body, const serve::RequestDefaults& /*defaults*/) {
        return prepare_detokenize(body);
      },
      &Service::reply_prepared);
}

void Service::reply_prepared(std::unique_ptr<Call> call, Result<Prepared> prepared) {
  if (!prepared) return refuse(std::move(call), serve::api_error(prepared.error()));
  reply(std::move(call), 200, std::move(prepared->body));
}

// --- On a worker: model_ does not change once it is there ---

// A prompt that is somewhat too long is counted, so that its client knows what to cut; beyond
// that its count is not worth a worker's time.
model::TokenBudget Service::token_budget() const {
  constexpr int64_t kCountedTokens = 32'768;
  return {.tokens_max = std::max(2 * context_tokens_max_, kCountedTokens)};
}

Result<Service::Prepared> Service::prepare_completion(
    const std::string& body, const serve::RequestDefaults& defaults) const {
  Prepared prepared;
  prepared.request = TRY(serve::parse_completion_request(body, defaults));
  for (const serve::RawPrompt& prompt : prepared.request.prompts) {
    model::TokenBudget budget = token_budget();
    if (!prompt.ids.empty()) {
      prepared.prompts.push_back(prompt.ids);
    } else if (prepared.request.suffix) {
      prepared.prompts.push_back(
          TRY(model_->codec->encode_fill(prompt.text, *prepared.request.suffix, &budget)));
    } else {
      prepared.prompts.push_back(
          TRY(model_->codec->encode_text(prompt.text, model::Markup::kPlain, &budget)));
    }
    if (budget.over()) {
      prepared.prompt_tokens_over = budget.seen;
      return prepared;
    }
    if (!prepared.request.echo) continue;
    prepared.echo_texts.push_back(prompt.ids.empty() ? prompt.text
                                                     : TRY(model_->tokenizer->decode(prompt.ids)));
  }
  if (!prepared.request.output_tokens_max) {
    prepared.request.output_tokens_max = kCompletionTokens;
  }
  return prepared;
}

Result<Service::Prepared> Service::prepare_conversation(Result<serve::ApiRequest> parsed) const {
  Prepared prepared;
  if (!parsed) return parsed.error();
  prepared.request = std::move(*parsed);
  model::TokenBudget budget = token_budget();
  Result<serve::Prompt> encoded = model_->codec->encode(*prepared.request.conversation, &budget);
  if (!encoded) return in_words_of(prepared.request.api, std::move(encoded).error());
  if (budget.over()) {
    prepared.prompt_tokens_over = budget.seen;
    return prepared;
  }
  serve::Prompt prompt = std::move(*encoded);
  prepared.prompts.push_back(std::move(prompt.ids));
  prepared.start = prompt.start;
  return prepared;
}

Result<Service::Prepared> Service::prepare_count(const std::string& body,
                                                 const serve::RequestDefaults& defaults) const {
  const serve::ApiRequest request =
      TRY(serve::parse_messages_request(body, defaults, serve::MessagesUse::kCount));
  const serve::Prompt prompt = TRY(model_->codec->encode(*request.conversation));
  Prepared prepared;
  prepared.body = serve::count_tokens_body(static_cast<int64_t>(prompt.ids.size()));
  return prepared;
}

Result<Service::Prepared> Service::prepare_tokenize(const std::string& body,
                                                    const serve::RequestDefaults& defaults) const {
  const serve::TokenizeRequest request = TRY(serve::parse_tokenize_request(body));
  std::vector<int32_t> ids;
  if (!request.text) {
    const serve::ApiRequest chat = TRY(serve::parse_chat_request(body, defaults));
    ids = TRY(model_->codec->encode(*chat.conversation)).ids;
  } else if (request.add_special_tokens) {
    ids = TRY(model_->codec->encode_text(*request.text, model::Markup::kPlain));
  } else {
    ids = TRY(model_->tokenizer->encode(*request.text, model::Markup::kPlain));
  }
  std::vector<std::string> texts;
  for (size_t i = 0; request.return_token_texts && i < ids.size(); ++i) {
    texts.emplace_back(model_->tokenizer->token_string(ids[i]));
  }
  Prepared prepared;
  prepared.body = serve::tokenize_body(ids, texts, context_tokens_max_);
  return prepared;
}

Result<Service::Prepared> Service::prepare_detokenize(const std::string& body) const {
  const serve::DetokenizeRequest request = TRY(serve::parse_detokenize_request(body));
  Prepared prepared;
  prepared.body = serve::detokenize_body(TRY(model_->tokenizer->decode(request.ids)));
  return prepared;
}

// --- On the loop again ---

std::optional<serve::ApiError> Service::check_model(std::string_view name) const {
  const auto& names = options_.model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) {
    return std::nullopt;
  }
  return serve::ApiError{
      serve::ApiFault::kModelNotFound,
      "no model " + shown_text(name) + " here; GET /v1/models lists what there is", "model"};
}

std::optional<serve::ApiError> Service::check_fit(const Prepared& prepared) const {
  int64_t most = prepared.prompt_tokens_over;
  for (const std::vector<int32_t>& prompt : prepared.prompts) {
    most = std::max(most, static_cast<int64_t>(prompt.size()));
  }
  if (most < context_tokens_max_) return std::nullopt;
  return serve::ApiError{serve::ApiFault::kContextLength,
                         std::string("the prompt has ") +
                             (prepared.prompt_tokens_over > 0 ? "at least " : "") +
                             std::to_string(most) + " tokens, the model takes at most " +
                             std::to_string(context_tokens_max_) + " of prompt and answer together",
                         std::string(prompt_field(prepared.request.api))};
}

std::unique_ptr<AnswerReader> Service::make_reader(const Prepared& prepared) {
  const serve::ApiRequest& asked = prepared.request;
  if (!asked.conversation) {
    return std::make_unique<PlainAnswerReader>(*model_->tokenizer, *model_->codec,
                                               asked.stop_texts);
  }
  serve::AnswerOptions options;
  options.start = prepared.start;
  options.tools = !asked.conversation->tools.empty() &&
                  asked.conversation->tool_choice != serve::ToolChoice::kNone;
  options.json = !asked.conversation->response_format.empty();
  options.stops = asked.stop_texts;
  options.call_id_prefix =
      (asked.api == serve::Api::kMessages ? "toolu_" : "call_") + random_hex(random_, 16) + "_";
  return std::make_unique<TurnReader>(*model_->tokenizer, *model_->codec, std::move(options));
}

std::vector<Order> Service::make_orders(const Prepared& prepared, const Call& call) {
  const serve::ApiRequest& asked = prepared.request;
  // Its own, else --seed, else drawn.
  uint64_t seed = asked.seed.value_or(defaults_->sampling.seed);
  if (!asked.seed && seed == 0) seed = random_();
  const std::string who = call.guest ? call.guest->name() : "";
  std::vector<Order> orders;
  for (size_t p = 0; p < prepared.prompts.size(); ++p) {
    const auto size = static_cast<int64_t>(prepared.prompts[p].size());
    const int64_t room = context_tokens_max_ - size;
    int64_t most = asked.output_tokens_max ? *asked.output_tokens_max : room;
    if (options_.output_tokens_max > 0) most = std::min(most, options_.output_tokens_max);
    for (int32_t i = 0; i < asked.n; ++i) {
      Order order;
      order.prompt = static_cast<int32_t>(p);
      order.request.id = model_->engine->next_id();
      order.request.prompt = prepared.prompts[p];
      order.request.output_tokens_max = static_cast<int32_t>(std::min(most, room));
      if (!asked.ignore_end) order.request.stop_tokens = {model_->codec->end_id()};
      order.request.sampling = asked.sampling;
      if (asked.output_tokens_min > 0) {
        order.request.sampling.held_back = {model_->codec->end_id()};
        order.request.sampling.held_back_before = size + asked.output_tokens_min;
      }
      order.request.sampling.seed = seed;
      order.request.sampling.stream = orders.size();
      order.request.priority = asked.priority;
      // A key's share is the key's: naming ever new users must not make it larger.
      order.request.tenant = std::hash<std::string>()(who.empty() ? asked.user : who);
      order.request.cache_namespace = who;
      if (options_.deadline.count() > 0) order.request.deadline = call.arrived + options_.deadline;
      order.reader = make_reader(prepared);
      orders.push_back(std::move(order));
    }
  }
  return orders;
}

void Service::start(std::unique_ptr<Call> call, Result<Prepared> prepared) {
  if (!prepared) return refuse(std::move(call), serve::api_error(prepared.error()));
  if (const auto wrong = check_model(prepared->request.model)) {
    return refuse(std::move(call), *wrong);
  }
  if (const auto wrong = check_fit(*prepared)) return refuse(std::move(call), *wrong);
  if (state_ == ServiceState::kRefusing || state_ == ServiceState::kStopped) {
    return refuse(std::move(call), {serve::ApiFault::kDraining, "the server is shutting down", ""},
                  2);
  }
  serve::AnswerHead head;
  head.id = random_hex(random_);
  head.created = std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count();
  head.model =
      prepared->request.model.empty() ? options_.model_names.front() : prepared->request.model;
  head.fingerprint = "galley-" + options_.version;
  head.echo_texts = std::move(prepared->echo_texts);
  for (const std::vector<int32_t>& prompt : prepared->prompts) {
    head.prompt_tokens += static_cast<int64_t>(prompt.size());
  }
  if (call->guest) {
    if (const auto refusal = call->guest->reserve_tokens(head.prompt_tokens, Clock::now())) {
      return refuse(std::move(call), {serve::ApiFault::kRateLimited, refusal->message, ""},
                    refusal->retry_after_s);
    }
  }
  const std::string warning = serve::ignored_fields_warning(prepared->request);
  if (!warning.empty()) call->fields.push_back({"Warning", warning});
  std::vector<Order> orders = make_orders(*prepared, *call);
  auto live = std::make_unique<LiveRequest>(door_, std::move(call), std::move(prepared->request),
                                            std::move(head), std::move(orders));
  LiveRequest* const request = live.get();
  live_.emplace(request, std::move(live));
  if (!request->ended()) {
    const Result<void> submitted = request->submit();
    if (!submitted) request->fail(serve::api_error(submitted.error()));
  }
  sweep(request);
}

}  // namespace galley::server
