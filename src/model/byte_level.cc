#include "model/byte_level.h"

#include <cstdint>

namespace galley::model {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// Code point of each byte: all below U+0144.
std::array<int, 256> code_points() {
  std::array<int, 256> points = {};
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    points[static_cast<size_t>(byte)] = stands_for_itself(byte) ? byte : next++;
  }
  return points;
}

}  // namespace

std::array<std::string, 256> byte_symbols() {
  const std::array<int, 256> points = code_points();
  std::array<std::string, 256> symbols;
  for (size_t byte = 0; byte < 256; ++byte) {
    const int point = points[byte];
    if (point < 0x80) {
      symbols[byte] = static_cast<char>(point);
    } else {
      symbols[byte] = {static_cast<char>(0xC0 | (point >> 6)),
                       static_cast<char>(0x80 | (point & 0x3F))};
    }
  }
  return symbols;
}

std::optional<std::string> bytes_of_symbols(std::string_view text) {
  static const std::array<int, 0x144> kByteOf = [] {
    std::array<int, 0x144> bytes;
    bytes.fill(-1);
    const std::array<int, 256> points = code_points();
    for (size_t byte = 0; byte < 256; ++byte) {
      bytes[static_cast<size_t>(points[byte])] = static_cast<int>(byte);
    }
    return bytes;
  }();
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    size_t point = static_cast<uint8_t>(text[i]);
    if (point >= 0x80) {
      // Only two-byte sequences can be below U+0144.
      if (point < 0xC2 || point > 0xC5 || i + 1 == text.size()) return std::nullopt;
      point = ((point & 0x1F) << 6) | (static_cast<uint8_t>(text[++i]) & 0x3F);
    }
    if (point >= kByteOf.size() || kByteOf[point] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOf[point]);
  }
  return bytes;
}

}  // namespace galley::model
