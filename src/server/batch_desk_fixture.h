// A desk with a scripted front door, for its tests: what it asks waits until the
// test answers, what it posts until the test runs it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/batch_desk.h"

namespace galley::server {

using Json = nlohmann::json;

class BatchDeskTest : public testing::Test {
 protected:
  BatchDeskTest() { open(); }

  // A desk as at the start of a process; the one before ends as if it were killed.
  void open() {
    later_.clear();
    asked_.clear();
    desk_.emplace(parts(), BatchLimits{.bytes_max = 4000, .files_max = 4, .in_flight_max = 2});
  }

  BatchDesk::Parts parts() {
    return {.ask =
                [this](const std::string& owner, const std::shared_ptr<net::Exchange>& exchange) {
                  EXPECT_EQ(owner, "me");
                  EXPECT_FALSE(exchange->request().field("Authorization"));
                  asked_.push_back(exchange);
                  most_ = std::max(most_, asked_.size());
                },
            .later = [this](std::function<void()> work) { later_.push_back(std::move(work)); },
            .aside = [this](std::function<void()> work) { later_.push_back(std::move(work)); },
            .fresh_id = [this] { return std::to_string(++ids_); },
            .now = [this] { return now_; },
            .trouble = [this](const Error& /*error*/) { ++troubles_; }};
  }

  void run_later() {
    while (!later_.empty()) {
      auto work = std::exchange(later_, {});
      for (const auto& each : work) each();
    }
  }

  // Answers what is asked until nothing is; `answer` makes the response of a body.
  template <class Answer>
  void serve_all(Answer answer) {
    run_later();
    while (!asked_.empty()) {
      for (const auto& exchange : std::exchange(asked_, {})) {
        exchange->respond(answer(Json::parse(exchange->request().body)));
      }
      run_later();
    }
  }

  std::string upload(const std::string& owner, const std::string& content) {
    const std::string body =
        "--x\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
        "--x\r\nContent-Disposition: form-data; name=file; filename=in.jsonl\r\n\r\n" +
        content + "\r\n--x--\r\n";
    const auto told = desk_->upload(owner, "multipart/form-data; boundary=x", body);
    return told ? Json::parse(*told)["id"].get<std::string>() : told.error().message;
  }

  static std::string lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const std::string number = std::to_string(i);
      text.append(R"({"custom_id":"l)").append(number);
      text.append(R"(","method":"POST","url":"/v1/completions","body":{"prompt":")");
      text.append(number).append("\"}}\n");
    }
    return text;
  }

  std::string create(const std::string& owner, const std::string& file) {
    const auto told =
        desk_->create(owner, R"({"input_file_id":")" + file +
                                 R"(","endpoint":"/v1/completions","completion_window":"24h"})");
    return told ? Json::parse(*told)["id"].get<std::string>() : told.error().message;
  }

  Json batch(const std::string& id) { return Json::parse(*desk_->batch("me", id)); }

  static net::HttpResponse good(const Json& body) {
    return {200, {}, R"({"text":)" + body["prompt"].dump() + "}"};
  }

  std::vector<std::shared_ptr<net::Exchange>> asked_;
  std::vector<std::function<void()>> later_;
  size_t most_ = 0;  // asked at once
  int ids_ = 0;
  int64_t now_ = 100;
  int troubles_ = 0;
  std::optional<BatchDesk> desk_;
};

}  // namespace galley::server
