#include "server/token_mailbox.h"

#include <utility>

namespace galley::server {

class TokenMailbox::Sink : public engine::TokenSink {
 public:
  Sink(TokenMailbox& box, LiveRequest* to, int32_t choice) : box_(&box), to_(to), choice_(choice) {}

  void on_event(const engine::TokenEvent& event) override {
    Mail mail;
    mail.to = to_;
    mail.choice = choice_;
    mail.token = event.token;
    mail.has_token = event.has_token;
    mail.lost_some = lost_some_;
    mail.finish = event.finish;
    mail.logprob = event.logprob;
    mail.top_logprobs.assign(event.top_logprobs.begin(), event.top_logprobs.end());
    mail.usage = event.usage;
    mail.at = std::chrono::steady_clock::now();
    lost_some_ = !box_->put(std::move(mail)) || lost_some_;
  }

 private:
  TokenMailbox* box_;
  LiveRequest* to_;
  int32_t choice_;
  bool lost_some_ = false;  // of the engine's thread
};

std::shared_ptr<engine::TokenSink> TokenMailbox::sink(LiveRequest* to, int32_t choice) {
  return std::make_shared<Sink>(*this, to, choice);
}

bool TokenMailbox::put(Mail mail) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    // A last event is never dropped: there is one for each sequence in hand, which are bounded.
    if (mails_.size() >= kMailsMax && mail.finish == engine::FinishReason::kNone) return false;
    was_empty = mails_.empty();
    mails_.push_back(std::move(mail));
  }
  if (was_empty) wake_();
  return true;
}

void TokenMailbox::take(std::vector<Mail>& taken) {
  taken.clear();
  const std::lock_guard lock(mutex_);
  taken.swap(mails_);
}

}  // namespace galley::server
