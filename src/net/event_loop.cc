#include "net/event_loop.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

namespace galley::net {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

struct Descriptor::State {
  explicit State(asio::io_context& context) : stream(context) {}

  asio::posix::stream_descriptor stream;
};

struct EventLoop::State {
  // A hint of one thread: asio then takes no locks to hand work on.
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{context.get_executor()};
  std::unique_ptr<asio::signal_set> signals;
  std::function<void(int)> on_signal;

  void wait_for_signal() {
    signals->async_wait([this](const ErrorCode& code, int signal) {
      if (code) return;
      on_signal(signal);
      wait_for_signal();
    });
  }
};

Descriptor::Descriptor(std::shared_ptr<State> state) : state_(std::move(state)) {}
Descriptor::~Descriptor() { close(); }

int Descriptor::fd() const { return state_->stream.native_handle(); }

void Descriptor::when_readable(std::function<void()> then) {
  state_->stream.async_wait(asio::posix::stream_descriptor::wait_read,
                            [state = state_, then = std::move(then)](const ErrorCode& code) {
                              if (!code && state->stream.is_open()) then();
                            });
}

void Descriptor::when_writable(std::function<void()> then) {
  state_->stream.async_wait(asio::posix::stream_descriptor::wait_write,
                            [state = state_, then = std::move(then)](const ErrorCode& code) {
                              if (!code && state->stream.is_open()) then();
                            });
}

void Descriptor::close() {
  ErrorCode ignored;
  state_->stream.close(ignored);
}

EventLoop::EventLoop() : state_(std::make_unique<State>()) {}
EventLoop::~EventLoop() = default;

void EventLoop::run() { state_->context.run(); }
void EventLoop::stop() { state_->context.stop(); }

void EventLoop::post(std::function<void()> work) {
  asio::post(state_->context, [work = std::move(work)] { work(); });
}

void EventLoop::after(std::chrono::milliseconds delay, std::function<void()> work) {
  auto timer = std::make_shared<asio::steady_timer>(state_->context, delay);
  timer->async_wait([timer, work = std::move(work)](const ErrorCode& code) {
    if (!code) work();
  });
}

void EventLoop::every(std::chrono::milliseconds period, std::function<void()> work) {
  after(period, [this, period, work = std::move(work)]() mutable {
    work();
    every(period, std::move(work));
  });
}

void EventLoop::on_signals(const std::vector<int>& signals, std::function<void(int)> then) {
  state_->signals = std::make_unique<asio::signal_set>(state_->context);
  for (const int signal : signals) {
    ErrorCode ignored;
    state_->signals->add(signal, ignored);
  }
  state_->on_signal = std::move(then);
  state_->wait_for_signal();
}

std::unique_ptr<Descriptor> EventLoop::own(int fd) {
  auto state = std::make_shared<Descriptor::State>(state_->context);
  ErrorCode ignored;
  state->stream.assign(fd, ignored);
  state->stream.non_blocking(true, ignored);
  return std::unique_ptr<Descriptor>(new Descriptor(std::move(state)));
}

}  // namespace galley::net
