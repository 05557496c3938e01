// One thread's waiting: descriptors, timers, signals and work from other threads.
//
// Boost.Asio stays behind this header. Everything but post() and stop() is for the
// loop's thread, or for the time before run().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

namespace galley::net {

// Owns a descriptor that does not block. One wait of each kind at a time; a callback is not
// called any more after the destruction, or after close().
class Descriptor {
 public:
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int fd() const;
  void when_readable(std::function<void()> then);
  void when_writable(std::function<void()> then);
  void close();

 private:
  friend class EventLoop;
  struct State;
  explicit Descriptor(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

class EventLoop {
 public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Until stop().
  void run();
  void stop();
  // Any thread. Work posted by one thread runs in its order.
  void post(std::function<void()> work);
  void after(std::chrono::milliseconds delay, std::function<void()> work);
  // Again and again, until the loop ends.
  void every(std::chrono::milliseconds period, std::function<void()> work);
  void on_signals(const std::vector<int>& signals, std::function<void(int)> then);

  // Takes the descriptor and makes it non-blocking.
  std::unique_ptr<Descriptor> own(int fd);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley::net
