#include "server/live_request.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"

namespace galley::server {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(LiveRequest::TimePoint begin, LiveRequest::TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

serve::AnswerLogprob logprob_of(const model::Tokenizer& tokenizer,
                                const engine::TokenLogprob& token) {
  return {std::string(tokenizer.token_bytes(token.token)), token.logprob};
}

const char* finish_word(serve::AnswerFinish reason) {
  switch (reason) {
    case serve::AnswerFinish::kStop:
    case serve::AnswerFinish::kStopText:
    case serve::AnswerFinish::kToolCalls:
      return "stop";
    case serve::AnswerFinish::kLength:
      return "length";
    case serve::AnswerFinish::kCancelled:
      return "abort";
    case serve::AnswerFinish::kFailed:
      return "error";
  }
  return "error";
}

bool ends_a_call(const std::vector<serve::AnswerEvent>& events) {
  return std::any_of(events.begin(), events.end(), [](const serve::AnswerEvent& event) {
    return std::holds_alternative<serve::ToolCallEnd>(event);
  });
}

// As words that live as long as the program.
const char* finish_literal(std::string_view finish) {
  for (const char* word : {"stop", "length", "abort"}) {
    if (finish == word) return word;
  }
  return "error";
}

}  // namespace

LiveRequest::LiveRequest(KitchenDoor& door, std::unique_ptr<Call> call, serve::ApiRequest request,
                         serve::AnswerHead head, std::vector<Order> orders)
    : door_(&door),
      call_(std::move(call)),
      request_(std::move(request)),
      encoder_(serve::make_answer_encoder(request_, std::move(head))),
      last_sent_(call_->arrived) {
  for (Order& order : orders) {
    Choice choice;
    choice.id = order.request.id;
    choice.reader = std::move(order.reader);
    choice.prompt = order.prompt;
    choice.usage.prompt_tokens = static_cast<int32_t>(order.request.prompt.size());
    choices_.push_back(std::move(choice));
    output_tokens_max_ = std::max<int64_t>(output_tokens_max_, order.request.output_tokens_max);
    to_submit_.push_back(std::move(order.request));
  }
  choices_left_ = static_cast<int32_t>(choices_.size());
  call_->exchange->on_gone([this] {
    if (!ended_) end(499, "abort", "the client left");
  });
}

LiveRequest::~LiveRequest() { CHECK(sequences_left_ == 0); }

Result<void> LiveRequest::submit() {
  submitted_ = Clock::now();
  if (door_->board != nullptr) {
    const bool is_batch = request_.priority != engine::Priority::kInteractive;
    ticket_ = door_->board->open({.id = call_->id,
                                  .priority = is_batch ? "batch" : "interactive",
                                  .prompt_tokens = choices_.front().usage.prompt_tokens,
                                  .output_tokens_max = output_tokens_max_},
                                 door_->clock_ms(submitted_));
  }
  for (size_t i = 0; i < to_submit_.size(); ++i) {
    TRY(door_->engine->submit(std::move(to_submit_[i]),
                              door_->mailbox->sink(this, static_cast<int32_t>(i))));
    choices_[i].left_engine = false;
    ++sequences_left_;
  }
  to_submit_.clear();
  return {};
}

void LiveRequest::take(Mail mail) {
  if (mail.finish != engine::FinishReason::kNone) {
    choices_[static_cast<size_t>(mail.choice)].left_engine = true;
    --sequences_left_;
  }
  if (ended_) return;
  if (!backlog_.empty() || !call_->exchange->has_room()) {
    if (backlog_.size() >= door_->backlog_max) {
      call_->exchange->abort_stream();
      return end(499, "abort", "the client reads too slowly");
    }
    backlog_.push_back(std::move(mail));
    return;
  }
  digest(mail);
}

void LiveRequest::flush() {
  if (ended_) return;
  while (!backlog_.empty() && call_->exchange->has_room() && !ended_) {
    const Mail mail = std::move(backlog_.front());
    backlog_.pop_front();
    digest(mail);
    if (out_.size() > 0) write_out();
  }
  if (ended_) return;
  write_out();
  if (!ended_ && !backlog_.empty()) call_->exchange->on_room([this] { flush(); });
}

void LiveRequest::digest(const Mail& mail) {
  Choice& choice = choices_[static_cast<size_t>(mail.choice)];
  if (choice.ended || ended_) return;
  if (mail.lost_some) {
    return fail({serve::ApiFault::kInternal, "the server could not keep up with the model", ""});
  }
  choice.usage = mail.usage;
  const bool is_end_token = mail.finish == engine::FinishReason::kStop;
  if (mail.has_token) {
    measure(choice, mail);
    const bool reasoning = choice.reader->in_reasoning();
    ++choice.output_tokens;
    if (reasoning) ++choice.reasoning_tokens;
    if (!is_end_token) {
      if (request_.sampling.logprob) add_logprobs(mail, reasoning);
      choice.reader->push(mail.token, events_);
      if (request_.one_tool_call && ends_a_call(events_)) {
        return end_choice(mail.choice, serve::AnswerFinish::kStop);
      }
    }
  }
  if (choice.reader->done()) return end_choice(mail.choice, serve::AnswerFinish::kStop);
  switch (mail.finish) {
    case engine::FinishReason::kNone:
      return emit(mail.choice);
    case engine::FinishReason::kStop:
      return end_choice(mail.choice, serve::AnswerFinish::kStop);
    case engine::FinishReason::kLength:
      return end_choice(mail.choice, serve::AnswerFinish::kLength);
    case engine::FinishReason::kCancelled:
      return fail({serve::ApiFault::kDraining, "the server is shutting down", ""});
    case engine::FinishReason::kDeadline:
      return fail({serve::ApiFault::kTimedOut, "the request took longer than is allowed here", ""});
    case engine::FinishReason::kFailed:
      return fail({serve::ApiFault::kInternal,
                   "the model gave no usable output; the server's log says more", ""});
  }
}

void LiveRequest::measure(Choice& choice, const Mail& mail) const {
  if (ticket_ != nullptr) {
    if (&choice == &choices_.front()) {
      if (!choice.first_token) show_prompt(mail.usage, false, mail.at);
      ticket_->enter(serve::KitchenPhase::kDecode, door_->clock_ms(mail.at));
    }
    ticket_->add_output(1);
  }
  if (!choice.first_token) {
    choice.first_token = mail.at;
  } else {
    door_->metrics->observe_token_gap(seconds_between(choice.last_token, mail.at));
  }
  choice.last_token = mail.at;
}

void LiveRequest::show_prompt(const engine::Usage& usage, bool replays,
                              std::optional<TimePoint> first_token) const {
  if (!usage.admitted_at) return;
  std::optional<int64_t> replayed_ms;
  if (usage.replayed_at) {
    replayed_ms = door_->clock_ms(*usage.replayed_at);
  } else if (usage.replayed_tokens > 0 && first_token) {
    // One step did both: its time is split by its rows.
    const int64_t rows = usage.prompt_tokens - usage.cached_tokens + usage.replayed_tokens;
    const auto replay = (*first_token - *usage.admitted_at) * usage.replayed_tokens / rows;
    replayed_ms = door_->clock_ms(*usage.admitted_at + replay);
  }
  ticket_->set_hit(usage.cached_tokens, usage.replayed_tokens);
  ticket_->run_prompt(door_->clock_ms(*usage.admitted_at), replayed_ms, replays);
}

void LiveRequest::show(const engine::EngineGlance& glance) const {
  const Choice& choice = choices_.front();
  if (ticket_ == nullptr || choice.left_engine) return;
  for (const engine::RunningSequence& running : glance.running) {
    if (running.id != choice.id) continue;
    if (!choice.first_token) show_prompt(running.usage, running.replays, std::nullopt);
    return;
  }
  // It had tokens by then, and did not run: it was preempted.
  if (choice.first_token && choice.last_token < glance.at) {
    ticket_->enter(serve::KitchenPhase::kSpilled, door_->clock_ms(glance.at));
  }
}

void LiveRequest::add_logprobs(const Mail& mail, bool reasoning) {
  serve::AnswerToken token;
  token.chosen = logprob_of(*door_->tokenizer, {mail.token, mail.logprob});
  for (const engine::TokenLogprob& other : mail.top_logprobs) {
    token.top.push_back(logprob_of(*door_->tokenizer, other));
  }
  serve::LogprobsDelta delta;
  delta.tokens.push_back(std::move(token));
  delta.reasoning = reasoning;
  events_.emplace_back(std::move(delta));
}

// Hands the events of one choice to the encoder.
void LiveRequest::emit(int32_t index) {
  if (events_.empty()) return;
  if (!encoding_) {
    encoding_ = true;
    encoder_->start(out_);
  }
  for (const serve::AnswerEvent& event : events_) encoder_->event(index, event, out_);
  events_.clear();
}

void LiveRequest::end_choice(int32_t index, serve::AnswerFinish reason) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.ended = true;
  choice.reader->finish(reason, events_);
  if (!choice.left_engine) door_->engine->cancel(choice.id);
  if (outcome_.finish.empty()) outcome_.finish = finish_word(reason);
  emit(index);
  if (--choices_left_ == 0) complete();
}

void LiveRequest::complete() {
  encoder_->finish(usage(), out_);
  const std::shared_ptr<net::Exchange> exchange = call_->exchange;
  if (request_.stream) {
    write_out();
    if (ended_) return;  // the client left while it was written
    end(200, outcome_.finish, "");
    exchange->end_stream();
    return;
  }
  end(200, outcome_.finish, "");
  net::HttpResponse response = {200, call_->fields, std::move(out_)};
  response.fields.push_back({"Content-Type", std::string(serve::content_type(request_))});
  exchange->respond(std::move(response));
}

void LiveRequest::fail(const serve::ApiError& error) {
  if (ended_) return;
  const int status = serve::http_status(error.fault, call_->dialect);
  const std::shared_ptr<net::Exchange> exchange = call_->exchange;
  if (!streaming_) {
    end(status, "error", error.message);
    net::HttpResponse response = {status, call_->fields,
                                  serve::error_body(error, call_->dialect, call_->id)};
    response.fields.push_back({"Content-Type", "application/json"});
    if (error.fault == serve::ApiFault::kOverloaded || error.fault == serve::ApiFault::kDraining) {
      response.fields.push_back({"Retry-After", "2"});
    }
    exchange->respond(std::move(response));
    return;
  }
  encoder_->fail(error, out_);
  write_out();
  if (ended_) return;
  end(status, "error", error.message);
  exchange->end_stream();
}

void LiveRequest::begin_stream() {
  streaming_ = true;
  net::HttpResponse head = {200, call_->fields, ""};
  head.fields.push_back({"Content-Type", std::string(serve::content_type(request_))});
  head.fields.push_back({"Cache-Control", "no-cache"});
  // nginx would gather the stream otherwise.
  head.fields.push_back({"X-Accel-Buffering", "no"});
  call_->exchange->begin_stream(std::move(head));
}

void LiveRequest::write_out() {
  if (!request_.stream || out_.empty() || ended_) return;
  if (!streaming_) begin_stream();
  const std::string bytes = std::exchange(out_, std::string());
  if (!ended_) call_->exchange->write(bytes);
  last_sent_ = Clock::now();
}

void LiveRequest::keep_alive(TimePoint now, std::chrono::milliseconds period) {
  if (ended_ || !request_.stream || now - last_sent_ < period) return;
  if (!call_->exchange->has_room()) return;
  if (!encoding_) {
    encoding_ = true;
    encoder_->start(out_);
  }
  const bool runs = std::any_of(choices_.begin(), choices_.end(), [](const Choice& choice) {
    return choice.first_token.has_value();
  });
  serve::append_sse_comment(out_, runs ? "working" : "reading the prompt");
  write_out();
}

void LiveRequest::cancel_all() {
  for (const Choice& choice : choices_) {
    if (!choice.left_engine) door_->engine->cancel(choice.id);
  }
}

void LiveRequest::end(int status, std::string finish, std::string problem) {
  CHECK(!ended_);
  ended_ = true;
  // The exchange may outlive this object.
  call_->exchange->on_room(nullptr);
  call_->exchange->on_gone([] {});
  cancel_all();
  backlog_.clear();
  outcome_.status = status;
  outcome_.finish = std::move(finish);
  outcome_.problem = std::move(problem);
  outcome_.usage = usage();
  outcome_.timing = timing();
  outcome_.timing.finish = outcome_.finish;
  if (ticket_ != nullptr)
    ticket_->close(finish_literal(outcome_.finish), door_->clock_ms(Clock::now()));
}

serve::AnswerUsage LiveRequest::usage() const {
  serve::AnswerUsage usage;
  int32_t prompt = -1;
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.output_tokens;
    usage.reasoning_tokens += choice.reasoning_tokens;
    if (choice.prompt == prompt) continue;  // the answers to one prompt stand together
    prompt = choice.prompt;
    usage.prompt_tokens += choice.usage.prompt_tokens;
    usage.cached_tokens += choice.usage.cached_tokens;
    usage.replayed_tokens += choice.usage.replayed_tokens;
    if (usage.miss_reason.empty() && choice.usage.miss != engine::MissReason::kNone) {
      usage.miss_reason = engine::miss_name(choice.usage.miss);
    }
  }
  return usage;
}

FinishedRequest LiveRequest::timing() const {
  FinishedRequest timing;
  const serve::AnswerUsage used = usage();
  timing.prompt_tokens = used.prompt_tokens;
  timing.cached_tokens = used.cached_tokens;
  timing.replayed_tokens = used.replayed_tokens;
  timing.output_tokens = used.completion_tokens;
  timing.choices = static_cast<int64_t>(choices_.size());
  timing.output_tokens_max = output_tokens_max_;
  timing.total_s = seconds_between(call_->arrived, Clock::now());
  for (const Choice& choice : choices_) timing.preemptions += choice.usage.preemptions;
  if (choices_.empty()) return timing;
  const Choice& first = choices_.front();
  timing.miss_reason = engine::miss_name(first.usage.miss);
  if (first.usage.admitted_at) {
    timing.queue_s = seconds_between(call_->arrived, *first.usage.admitted_at);
  }
  if (first.first_token) {
    timing.first_token_s = seconds_between(call_->arrived, *first.first_token);
    timing.decode_s = seconds_between(*first.first_token, first.last_token);
    if (first.usage.admitted_at) {
      timing.prefill_s = seconds_between(*first.usage.admitted_at, *first.first_token);
    }
  }
  return timing;
}

}  // namespace galley::server
