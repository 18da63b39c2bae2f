// The numbers of the operator's contract, free of torch.
#pragma once

#include <cstdint>

namespace ascend_sample {

inline constexpr int64_t kMaxVocabSize = int64_t{1} << 20;
inline constexpr int64_t kMaxTopK =
    1024;  // a larger k skips top-k, and a larger top_k_guess is capped

inline constexpr int64_t kMaxKsMax = 1024;  // of the second operator

/// The largest k that the second operator honours: ks_max rounded up to a multiple of 8.
inline constexpr int64_t largest_k(int64_t ks_max, int64_t vocab_size) {
  const int64_t rounded = (ks_max + 7) / 8 * 8;
  return rounded < vocab_size ? rounded : vocab_size;
}

/// A k that skips top-k for every vocabulary. Not INT32_MAX: CANN's aclnnThreshold computes int32
/// in float32, exactly up to 2^24.
inline constexpr int64_t kSkipTopK = kMaxVocabSize + 1;

}  // namespace ascend_sample
