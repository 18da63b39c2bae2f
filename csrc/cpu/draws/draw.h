// The draw among a few kept candidates: docs/semantics.md, section 4, in the reference's precision.
#pragma once

#include "cpu/draws/noise.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// The first `count` numbers of the noise, side by side.
inline const float* contiguous(const Noise& noise, size_t count, Workspace& work) {
  noise.need(count);
  if (noise.is_contiguous()) {
    return noise.data();
  }
  float* const copy = work.noise.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    copy[i] = noise[i];
  }
  return copy;
}

/// weight / (|q| + eps) in float32; -1 for a noise of NaN, which loses against every other.
ASCEND_SAMPLE_INLINE float score_of(float weight, float noise, float eps) {
  const float score = weight / (__builtin_fabsf(noise) + eps);
  return noise != noise ? -1.0F : weight == 0.0F ? 0.0F : score;
}

/// The least n with probabilities[0] + ... + probabilities[n-1] > target, where probability i is
/// exponentials[i] / sum rounded to float32; 0 when even all of them do not exceed it.
inline size_t count_until_exceeding(const double* exponentials, size_t count, double sum,
                                    double target) {
  double cumulated = 0;
  for (size_t n = 0; n < count; ++n) {
    cumulated += static_cast<double>(static_cast<float>(exponentials[n] / sum));
    if (cumulated > target) {
      return n + 1;
    }
  }
  return 0;
}

/// The first place of the largest of some scores, which have room up to a whole line.
inline size_t first_largest(float* scores, size_t count) {
  pad(scores, count);
  Floats first = load_floats(scores);
  Floats second = load_floats(scores + kLanes);
  for (size_t i = kLine; i < count; i += kLine) {
    first = larger(load_floats(scores + i), first);
    second = larger(load_floats(scores + i + kLanes), second);
  }
  const Floats largest = splat(largest_lane(larger(first, second)));
  for (size_t i = 0;; i += kLanes) {
    if (const uint32_t bits = bits_of(is_equal(load_floats(scores + i), largest)); bits != 0) {
      return i + static_cast<size_t>(__builtin_ctz(bits));
    }
  }
}

/// The lowest of the first `count` ranks with the largest score, the weights being
/// exponentials[rank] / total; `scores` has room for them.
inline size_t draw(const double* exponentials, size_t count, double total, const Noise& noise,
                   float eps, float* scores) {
  noise.need(count);
  for (size_t rank = 0; rank < count; ++rank) {
    scores[rank] = score_of(static_cast<float>(exponentials[rank] / total), noise[rank], eps);
  }
  return first_largest(scores, count);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
