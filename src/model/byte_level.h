// The printable spelling of bytes in byte-level vocabularies: printable Latin-1
// characters stand for themselves, the other bytes for U+0100 and up in order
// (spec/chat.md 1).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace galley::model {

// UTF-8 of the character that stands for each byte.
std::array<std::string, 256> byte_symbols();

// The bytes that a vocabulary string spells; nothing when some character stands for no byte.
std::optional<std::string> bytes_of_symbols(std::string_view text);

}  // namespace galley::model
