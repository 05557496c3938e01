// One page of a list, as OpenAI's clients walk through it: the entries after the
// one they saw last, and whether more follow.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "serve/api_files.h"
#include "serve/api_json.h"

namespace galley::serve {

// An `after` that is not there (any more) begins at the beginning.
template <class Entry, class ToJson>
std::string page_body(std::span<const Entry> entries, const ListQuery& query, ToJson to_json) {
  const auto seen = std::find_if(entries.begin(), entries.end(),
                                 [&](const Entry& entry) { return entry.id == query.after; });
  const auto first = seen == entries.end() ? entries.begin() : seen + 1;
  const auto count = std::min<ptrdiff_t>(query.limit, entries.end() - first);
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  for (auto entry = first; entry != first + count; ++entry) {
    body["data"].push_back(to_json(*entry));
  }
  body["first_id"] = nullptr;
  body["last_id"] = nullptr;
  if (count > 0) {
    body["first_id"] = first->id;
    body["last_id"] = (first + (count - 1))->id;
  }
  body["has_more"] = first + count != entries.end();
  return json_text(body);
}

}  // namespace galley::serve
