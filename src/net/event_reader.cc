#include "net/event_reader.h"

namespace galley::net {

bool EventReader::push(std::string_view piece) {
  while (!piece.empty()) {
    const size_t end = piece.find('\n');
    line_.append(piece.substr(0, end));
    if (line_.size() > kEventLineBytesMax) return false;
    if (end == std::string_view::npos) return true;
    piece.remove_prefix(end + 1);
    std::string_view line = line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    take_line(line);
    line_.clear();
  }
  return true;
}

void EventReader::take_line(std::string_view line) {
  if (line.empty()) {
    if (has_data_) on_data_(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  constexpr std::string_view kData = "data:";
  if (!line.starts_with(kData)) return;
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
}

}  // namespace galley::net
