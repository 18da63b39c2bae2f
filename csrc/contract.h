// The numbers of the operator's contract, free of torch.
#pragma once

#include <cstdint>

namespace ascend_sample {

inline constexpr int64_t kMaxVocabSize = int64_t{1} << 20;
inline constexpr int64_t kMaxTopK =
    1024;  // a larger k skips top-k, and a larger top_k_guess is capped

/// A k that skips top-k for every vocabulary. Not INT32_MAX: CANN's aclnnThreshold computes int32
/// in float32, exactly up to 2^24.
inline constexpr int64_t kSkipTopK = kMaxVocabSize + 1;

}  // namespace ascend_sample
