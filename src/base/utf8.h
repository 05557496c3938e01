// UTF-8 as bytes arrive: what is complete, what is broken, what may still grow.
//
// Broken bytes become U+FFFD by the rule of "maximal subparts": one replacement
// for the longest beginning of a code point that is there (Unicode 15, 3.9).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace galley {

bool is_utf8(std::string_view text);

// Appends `bytes` to `out`, broken parts as U+FFFD. With `more_may_come`, a code
// point that the end cuts off is left alone; returns how many bytes were used
// (all, or up to three fewer).
size_t append_utf8(std::string_view bytes, bool more_may_come, std::string& out);

// Everything, broken parts as U+FFFD.
std::string to_utf8(std::string_view bytes);

}  // namespace galley
