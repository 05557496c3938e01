// Service: files and batches, which the desk keeps.
#include <utility>

#include "base/check.h"
#include "server/service.h"

namespace galley::server {
namespace {

constexpr std::string_view kContent = "/content";
constexpr std::string_view kCancel = "/cancel";

const std::string& owner_of(const Call& call) { return call.guest->name(); }

// What stands for the star of the route's path.
std::string name_in(const Call& call) {
  return net::percent_decode(call.request().path.substr(call.route.size() - 1));
}

}  // namespace

std::unique_ptr<BatchDesk> Service::make_desk() {
  return std::make_unique<BatchDesk>(BatchDesk::Parts{
      .ask =
          [this](const std::string& owner, const std::shared_ptr<net::Exchange>& exchange) {
            std::unique_ptr<Call> call = open_call(exchange);
            call->asker = owner;
            dispatch(std::move(call));
          },
      .later = [this](std::function<void()> work) { loop_->post(std::move(work)); },
      .aside = [this](std::function<void()> work) { CHECK(disk_->post(0, std::move(work))); },
      .fresh_id = [this] { return random_hex(random_, 24); },
      .now =
          [] {
            const auto now = std::chrono::system_clock::now().time_since_epoch();
            return std::chrono::duration_cast<std::chrono::seconds>(now).count();
          },
      .trouble =
          [this](const Error& error) {
            log_->error(LogEvent("state_not_kept").add("problem", error.message));
          }});
}

void Service::keep_state(StateDirectory& state) {
  std::vector<std::string> problems;
  desk_->restore(state, problems);
  for (const std::string& problem : problems) {
    log_->warn(LogEvent("state_not_read").add("problem", problem));
  }
  log_->info(LogEvent("kept_state")
                 .add("directory", state.path())
                 .add("files", static_cast<int64_t>(desk_->file_count()))
                 .add("batches", static_cast<int64_t>(desk_->batch_count())));
}

void Service::reply_desk(std::unique_ptr<Call> call, Result<std::string> body,
                         std::string_view type) {
  if (!body) return refuse(std::move(call), serve::api_error(body.error()));
  reply(std::move(call), 200, *std::move(body), type);
}

void Service::post_file(std::unique_ptr<Call> call) {
  const net::HttpRequest& request = call->request();
  auto body =
      desk_->upload(owner_of(*call), request.field("content-type").value_or(""), request.body);
  reply_desk(std::move(call), std::move(body));
}

void Service::get_files(std::unique_ptr<Call> call) {
  auto body = desk_->files(owner_of(*call), call->request().query);
  reply_desk(std::move(call), std::move(body));
}

void Service::get_file(std::unique_ptr<Call> call) {
  std::string id = name_in(*call);
  if (id.ends_with(kContent)) {
    id.resize(id.size() - kContent.size());
    auto content = desk_->file_content(owner_of(*call), id);
    return reply_desk(std::move(call), std::move(content), "application/octet-stream");
  }
  auto body = desk_->file(owner_of(*call), id);
  reply_desk(std::move(call), std::move(body));
}

void Service::delete_file(std::unique_ptr<Call> call) {
  auto body = desk_->remove_file(owner_of(*call), name_in(*call));
  reply_desk(std::move(call), std::move(body));
}

void Service::post_batch(std::unique_ptr<Call> call) {
  const net::HttpRequest& request = call->request();
  auto body = desk_->create(owner_of(*call), request.body);
  reply_desk(std::move(call), std::move(body));
}

void Service::get_batches(std::unique_ptr<Call> call) {
  auto body = desk_->batches(owner_of(*call), call->request().query);
  reply_desk(std::move(call), std::move(body));
}

void Service::get_batch(std::unique_ptr<Call> call) {
  auto body = desk_->batch(owner_of(*call), name_in(*call));
  reply_desk(std::move(call), std::move(body));
}

void Service::post_cancel_batch(std::unique_ptr<Call> call) {
  std::string id = name_in(*call);
  if (!id.ends_with(kCancel)) {
    return refuse(std::move(call),
                  {serve::ApiFault::kNotFound, "only /v1/batches/ID/cancel can be posted to", ""});
  }
  id.resize(id.size() - kCancel.size());
  auto body = desk_->cancel(owner_of(*call), id);
  reply_desk(std::move(call), std::move(body));
}

}  // namespace galley::server
