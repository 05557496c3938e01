// The name of a page. Its bytes belong to whoever runs the model.
#pragma once

#include <compare>
#include <cstdint>

namespace galley::cache {

struct PageId {
  int32_t index = 0;
  auto operator<=>(const PageId&) const = default;
};

}  // namespace galley::cache
