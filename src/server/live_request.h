// A request while the engine works on it: its choices' tokens become events,
// the events become its API's bytes, and the bytes go to the client at the
// client's pace.
//
// Belongs to the loop's thread. It ends once, with everything, an error, or a
// client that left; it lives on until the engine is done with its sequences.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/answer_event.h"
#include "serve/api_answer.h"
#include "serve/api_request.h"
#include "serve/kitchen_board.h"
#include "server/answer_reader.h"
#include "server/call.h"
#include "server/serving_metrics.h"
#include "server/token_mailbox.h"

namespace galley::server {

// What live requests need of the server; outlives them.
struct KitchenDoor {
  engine::Engine* engine = nullptr;
  const model::Tokenizer* tokenizer = nullptr;
  TokenMailbox* mailbox = nullptr;
  ServingMetrics* metrics = nullptr;
  serve::KitchenBoard* board = nullptr;
  engine::TimePoint started;  // from when the board counts its milliseconds
  size_t backlog_max = 4096;  // tokens that wait for a slow client, then it is cut

  int64_t clock_ms(engine::TimePoint time) const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time - started).count();
  }
};

// One sequence to run.
struct Order {
  engine::GenerateRequest request;
  std::unique_ptr<AnswerReader> reader;
  int32_t prompt = 0;  // index of the prompt that it answers
};

class LiveRequest {
 public:
  using TimePoint = engine::TimePoint;

  // How it ended, for the log and the metrics.
  struct Outcome {
    int status = 200;
    std::string finish;   // of the first choice: "stop", "length", "abort", "error"
    std::string problem;  // empty: none
    serve::AnswerUsage usage;
    FinishedRequest timing;
  };

  LiveRequest(KitchenDoor& door, std::unique_ptr<Call> call, serve::ApiRequest request,
              serve::AnswerHead head, std::vector<Order> orders);
  ~LiveRequest();
  LiveRequest(const LiveRequest&) = delete;
  LiveRequest& operator=(const LiveRequest&) = delete;

  // Gives every sequence to the engine. An error: some could not be taken; those that were are
  // cancelled, nothing was sent, and the caller calls fail().
  Result<void> submit();

  void take(Mail mail);
  // Sends what the mails so far amount to.
  void flush();
  // A comment that keeps the connection open while nothing comes.
  void keep_alive(TimePoint now, std::chrono::milliseconds period);
  // Brings its ticket up to date.
  void show(const engine::EngineGlance& glance) const;
  // Ends it with an error, in the middle if need be.
  void fail(const serve::ApiError& error);

  bool ended() const { return ended_; }
  // Nothing of it is left anywhere.
  bool over() const { return ended_ && sequences_left_ == 0; }
  const Outcome& outcome() const { return outcome_; }
  const Call& call() const { return *call_; }
  const serve::ApiRequest& request() const { return request_; }

 private:
  struct Choice {
    engine::SequenceId id{};
    std::unique_ptr<AnswerReader> reader;
    int32_t prompt = 0;
    bool ended = false;  // its answer is complete, whatever the engine still does
    bool left_engine = true;
    int64_t output_tokens = 0;
    int64_t reasoning_tokens = 0;
    engine::Usage usage;
    std::optional<TimePoint> first_token;
    TimePoint last_token;
  };

  void digest(const Mail& mail);
  void emit(int32_t index);
  void end_choice(int32_t index, serve::AnswerFinish reason);
  void add_logprobs(const Mail& mail, bool reasoning);
  void measure(Choice& choice, const Mail& mail) const;
  void show_prompt(const engine::Usage& usage, bool replays,
                   std::optional<TimePoint> first_token) const;
  void complete();
  void end(int status, std::string finish, std::string problem);
  void cancel_all();
  void begin_stream();
  void write_out();
  serve::AnswerUsage usage() const;
  FinishedRequest timing() const;

  KitchenDoor* door_;
  std::unique_ptr<Call> call_;
  serve::ApiRequest request_;
  std::unique_ptr<serve::AnswerEncoder> encoder_;
  std::vector<engine::GenerateRequest> to_submit_;
  std::vector<Choice> choices_;
  int32_t choices_left_ = 0;
  int32_t sequences_left_ = 0;

  std::deque<Mail> backlog_;  // while the client has no room
  std::vector<serve::AnswerEvent> events_;
  std::string out_;
  bool encoding_ = false;   // the encoder has started
  bool streaming_ = false;  // the head is sent
  bool ended_ = false;
  int64_t output_tokens_max_ = 0;
  std::shared_ptr<serve::OpenTicket> ticket_;  // shared with the board, which shows it for a while
  TimePoint submitted_;
  TimePoint last_sent_;
  Outcome outcome_;
};

}  // namespace galley::server
