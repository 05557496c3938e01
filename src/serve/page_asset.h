// The web page as bytes inside the program: src/serve/page, embedded by CMake.
//
// The HTML is at "/" and is checked each time by its hash; everything else lies
// under a path that names the hash of all of it, so it may be cached for ever.
// A server sends `kPageHeaders` with each. Nothing on the page comes from
// another host, and the policy makes a browser refuse it.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <utility>

namespace galley::serve {

struct PageAsset {
  std::string_view path;  // of the URL
  std::string_view content_type;
  std::string_view etag;  // with its quotes
  std::string_view cache_control;
  std::string_view content;
};

std::span<const PageAsset> page_assets();

// Null: no such path.
const PageAsset* find_page_asset(std::string_view path);

// No inline script or style, no other host, no frame around it, and no string ever
// becomes markup (trusted types): what a model says can only be shown as text.
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kPageHeaders = {{
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
     "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
     "require-trusted-types-for 'script'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
}};

}  // namespace galley::serve
