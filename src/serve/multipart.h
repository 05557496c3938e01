// The parts of a multipart/form-data body (RFC 7578), as uploads come.
//
// Views into the body, which must outlive them. Bounded; nothing is decoded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::serve {

constexpr size_t kPartsMax = 16;
constexpr size_t kPartHeadBytesMax = 4096;

struct FormPart {
  std::string name;
  std::string filename;  // empty: a plain field
  std::string_view content;
};

// The boundary of a Content-Type header's value; kInvalid when it is no form.
Result<std::string> form_boundary(std::string_view content_type);

Result<std::vector<FormPart>> parse_form(std::string_view body, std::string_view boundary);

}  // namespace galley::serve
