// Any bytes as config.json: an error of one line, or a config whose layer roles
// and tensor inventory are consistent.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/config.h"
#include "model/inventory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using galley::model::Config;
  using galley::model::LayerRole;
  const auto result =
      galley::model::parse_config(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!result) {
    CHECK(!result.error().message.empty());
    return 0;
  }
  const Config& config = *result;
  CHECK(config.roles.size() == static_cast<size_t>(config.layers));
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const LayerRole& role = config.roles[static_cast<size_t>(layer)];
    if (role.ratio == 0) {
      CHECK(!role.owns_kv && !role.owns_indexer && role.kv_source == -1);
      continue;
    }
    CHECK(role.kv_source >= 0 && role.kv_source <= layer);
    CHECK(role.index_source >= role.kv_source && role.index_source <= layer);
    CHECK(config.roles[static_cast<size_t>(role.kv_source)].ratio == role.ratio);
  }
  // Large inventories only cost time here.
  if (int64_t{config.layers} * config.routed_experts +
          int64_t{config.dspark.stages} * config.dspark.routed_experts <
      1000) {
    for (const auto& tensor : galley::model::expected_tensors(config)) {
      CHECK(tensor.shape.elements() > 0);
      CHECK(tensor.shape.elements() < int64_t{1} << 56);
    }
  }
  return 0;
}
