// JSON as the APIs' bodies and server-sent events write it: keys in the order
// given, one line, bytes that are no UTF-8 replaced rather than thrown over.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace galley::serve {

using Json = nlohmann::ordered_json;

inline std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// One server-sent event; JSON text has no raw line feed. An empty name writes no event line.
inline void append_sse(std::string& out, std::string_view name, std::string_view data) {
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  out.append("data: ").append(data).append("\n\n");
}

}  // namespace galley::serve
