// The numbers of the operator's contract, free of torch.
#pragma once

#include <cstdint>

namespace ascend_sample {

inline constexpr int64_t kMaxVocabSize = int64_t{1} << 20;
inline constexpr int64_t kMaxTopK =
    1024;  // a larger k skips top-k, and a larger top_k_guess is capped

}  // namespace ascend_sample
