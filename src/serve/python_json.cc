#include "serve/python_json.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace galley::serve {
namespace {

// repr() of a float: the shortest digits that read back, with an exponent outside 1e-4..1e16.
std::string python_float(double value) {
  char text[40];
  const double magnitude = std::fabs(value);
  const bool plain = value == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const std::to_chars_result written =
      std::to_chars(text, text + sizeof text, value,
                    plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string repr(text, written.ptr);
  if (plain && repr.find('.') == std::string::npos) repr += ".0";
  return repr;
}

void append(const JsonValue& value, std::string& out) {
  if (value.is_object()) {
    out += '{';
    const char* separator = "";
    for (const std::string& key : value.keys()) {
      out += separator;
      out += python_json_string(key);
      out += ": ";
      append(*value.find(key), out);
      separator = ", ";
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ", ";
      append(value.item(i), out);
    }
    out += ']';
  } else if (value.is_string()) {
    out += python_json_string(*value.as_string());
  } else if (value.is_number() && !value.is_integer()) {
    out += python_float(value.raw().get<double>());
  } else {
    out += value.raw().dump();  // null, booleans and integers look the same
  }
}

}  // namespace

std::string python_json(const JsonValue& value) {
  std::string out;
  append(value, out);
  return out;
}

std::string python_json_string(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(text, out);
  return out + '"';
}

void append_json_escaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          char escaped[8];
          std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned char>(c));
          out += escaped;
        } else {
          out += c;
        }
    }
  }
}

}  // namespace galley::serve
