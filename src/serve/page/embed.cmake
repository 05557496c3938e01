# Writes the page's files into one C++ source: cmake -DPAGE=DIR -DOUT=FILE -DFILES=a,b -P embed.cmake
#
# index.html is served at /, the rest under /page/HASH/, where HASH is of all the
# other files; index.html says {{folder}} where that path goes.

string(REPLACE "," ";" files "${FILES}")

set(all)
foreach(name ${files})
  file(SHA256 ${PAGE}/${name} hash)
  string(APPEND all ${hash})
endforeach()
string(SHA256 folder_hash "${all}")
string(SUBSTRING ${folder_hash} 0 16 folder_hash)
set(folder "/page/${folder_hash}")

set(type_.html "text/html; charset=utf-8")
set(type_.css "text/css; charset=utf-8")
set(type_.js "text/javascript; charset=utf-8")
set(type_.svg "image/svg+xml")

set(arrays)
set(rows)
set(index 0)

function(append_asset path name hex hash cache)
  cmake_path(GET name EXTENSION LAST_ONLY extension)
  string(REGEX REPLACE "(................................)" "\\1\n" lines "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${lines}")
  set(arrays "${arrays}// ${name}\nconstexpr unsigned char kBytes${index}[] = {\n${bytes}\n};\n" PARENT_SCOPE)
  set(rows "${rows}    {\"${path}\", \"${type_${extension}}\", \"\\\"${hash}\\\"\", \"${cache}\", text(kBytes${index})},\n" PARENT_SCOPE)
  math(EXPR index "${index} + 1")
  set(index ${index} PARENT_SCOPE)
endfunction()

file(READ ${PAGE}/index.html html)
string(REPLACE "{{folder}}" "${folder}" html "${html}")
string(SHA256 hash "${html}")
string(SUBSTRING ${hash} 0 16 hash)
string(HEX "${html}" hex)
append_asset("/" index.html ${hex} ${hash} "no-cache")

foreach(name ${files})
  file(READ ${PAGE}/${name} hex HEX)
  file(SHA256 ${PAGE}/${name} hash)
  string(SUBSTRING ${hash} 0 16 hash)
  append_asset("${folder}/${name}" ${name} ${hex} ${hash} "public, max-age=31536000, immutable")
endforeach()

file(WRITE ${OUT} "// Written by src/serve/page/embed.cmake.
#include \"serve/page_asset.h\"

namespace galley::serve {
namespace {

template <size_t kSize>
std::string_view text(const unsigned char (&bytes)[kSize]) {
  return {reinterpret_cast<const char*>(bytes), kSize};
}

${arrays}
}  // namespace

std::span<const PageAsset> page_assets() {
  static const PageAsset kAssets[] = {
${rows}  };
  return kAssets;
}

const PageAsset* find_page_asset(std::string_view path) {
  for (const PageAsset& asset : page_assets()) {
    if (asset.path == path) return &asset;
  }
  return nullptr;
}

}  // namespace galley::serve
")
