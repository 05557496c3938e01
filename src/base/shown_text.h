// Somebody else's text inside a line of ours: an error, a log. Whatever it holds, it stays in
// that line, is UTF-8, and has an end.
#pragma once

#include <string>
#include <string_view>

namespace galley {

// In quotes, as JSON writes it; of more than 64 bytes the first ones and "...". Bytes that are
// not UTF-8 are left out.
std::string shown_text(std::string_view text);

}  // namespace galley
