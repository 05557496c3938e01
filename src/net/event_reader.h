// Server-sent events out of a body that comes in pieces: the data of each event, in order.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace galley::net {

// A line longer than this ends the reading: no event of ours comes near it.
constexpr size_t kEventLineBytesMax = size_t{16} << 20;

class EventReader {
 public:
  using OnData = std::function<void(std::string_view data)>;
  explicit EventReader(OnData on_data) : on_data_(std::move(on_data)) {}

  // False when a line is too long. Comments and fields other than data are passed over.
  bool push(std::string_view piece);

 private:
  void take_line(std::string_view line);

  OnData on_data_;
  std::string line_;  // begun, not ended
  std::string data_;  // of the event so far; several data lines are joined by line feeds
  bool has_data_ = false;
};

}  // namespace galley::net
