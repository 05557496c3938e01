// JSON's own writer does it.
#include "base/shown_text.h"

#include <nlohmann/json.hpp>

namespace galley {

std::string shown_text(std::string_view text) {
  constexpr size_t kShown = 64;
  const nlohmann::json whole = std::string(text.substr(0, kShown));
  std::string shown = whole.dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
  if (text.size() > kShown) shown.insert(shown.size() - 1, "...");
  return shown;
}

}  // namespace galley
