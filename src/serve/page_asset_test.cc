// The embedded page is whole: what the HTML and the scripts name is there, byte
// for byte as in the tree, and nothing in it needs what the policy forbids.
#include "serve/page_asset.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace galley::serve {
namespace {

std::string folder() {
  for (const PageAsset& asset : page_assets()) {
    const size_t end = asset.path.find("/page.js");
    if (end != std::string_view::npos) return std::string(asset.path.substr(0, end));
  }
  return "";
}

std::vector<std::string> matches(std::string_view text, const char* pattern) {
  const std::string content(text);
  const std::regex regex(pattern);
  std::vector<std::string> out;
  for (std::sregex_iterator it(content.begin(), content.end(), regex), end; it != end; ++it) {
    out.push_back((*it)[1]);
  }
  return out;
}

TEST(PageAsset, EverythingThatIsNamedIsThere) {
  const PageAsset* html = find_page_asset("/");
  ASSERT_NE(html, nullptr);
  EXPECT_EQ(html->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(html->cache_control, "no-cache");
  const auto linked = matches(html->content, R"re((?:src|href)="([^"#]+)")re");
  EXPECT_GE(linked.size(), 5u);
  for (const std::string& path : linked) EXPECT_NE(find_page_asset(path), nullptr) << path;

  std::set<std::string> imported = {"page.js"};
  for (const PageAsset& asset : page_assets()) {
    for (const std::string& name : matches(asset.content, R"re(from '\./([^']+)')re")) {
      EXPECT_NE(find_page_asset(folder() + "/" + name), nullptr) << asset.path << ": " << name;
      imported.insert(name);
    }
  }
  for (const PageAsset& asset : page_assets()) {
    if (!asset.path.ends_with(".js")) continue;
    const std::string name(asset.path.substr(folder().size() + 1));
    EXPECT_TRUE(imported.contains(name)) << name << " is embedded and never used";
  }
  EXPECT_EQ(find_page_asset("/page.js"), nullptr);
  EXPECT_EQ(find_page_asset(""), nullptr);
}

TEST(PageAsset, BytesAreThoseOfTheTree) {
  for (const PageAsset& asset : page_assets()) {
    if (asset.path == "/") continue;
    const std::string name(asset.path.substr(asset.path.rfind('/') + 1));
    std::ifstream file(GALLEY_SOURCE_DIR "/src/serve/page/" + name, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(asset.content, bytes) << name;
    EXPECT_TRUE(asset.cache_control.find("immutable") != std::string_view::npos) << name;
    EXPECT_FALSE(asset.content_type.empty()) << name;
    EXPECT_TRUE(asset.etag.size() > 2 && asset.etag.front() == '"' && asset.etag.back() == '"');
  }
}

TEST(PageAsset, AsksForNothingThatThePolicyForbids) {
  const std::regex inline_code(R"re(<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=")re");
  const std::regex markup_sink(
      R"re(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function)re");
  const std::regex other_host(R"re((https?:)?//[a-z0-9-]+\.[a-z])re");
  for (const PageAsset& asset : page_assets()) {
    const std::string content(asset.content);
    EXPECT_FALSE(asset.path == "/" && std::regex_search(content, inline_code));
    EXPECT_FALSE(std::regex_search(content, markup_sink)) << asset.path;
    // The names of XML's namespaces are never fetched.
    const std::string without =
        std::regex_replace(content, std::regex(R"re(http://www\.w3\.org/2000/svg)re"), "");
    EXPECT_FALSE(std::regex_search(without, other_host)) << asset.path;
  }
}

}  // namespace
}  // namespace galley::serve
