// Which ranks of a large nucleus may be drawn, by the noise alone.
#pragma once

#include "cpu/rows/row.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Ranks that might be drawn from a large nucleus.
struct Contenders {
  static constexpr size_t kMost = 32;
  size_t ranks[kMost];
  size_t count = 0;
  bool is_open = false;  // there are more, or scores so small or large that rounding joins in
};

/// The ranks that might be drawn. Weights fall with the rank, by a factor of `ratio` at most from
/// the first to the last: so a rank is drawn only where its noise is below that of every earlier
/// one, and within that factor of the least.
inline Contenders find_contenders(const float* q, size_t count, float eps, double ratio,
                                  float* minima) {
  const auto noise_of = [eps](float q_value) { return __builtin_fabsf(q_value) + eps; };
  const auto noises_from = [&](size_t rank) {
    return absolute(load_floats(q + rank)) + splat(eps);
  };
  float least = kInfinity;
  for (size_t start = 0; start < count; start += kChunk) {
    const size_t size = count - start < kChunk ? count - start : kChunk;
    Floats lanes = splat(kInfinity);
    size_t i = 0;
    for (; i + kLine <= size; i += kLine) {
      prefetch_ahead(q + start + i);
      lanes = smaller(noises_from(start + i), lanes);
      lanes = smaller(noises_from(start + i + kLanes), lanes);
    }
    float minimum = -largest_lane(-lanes);
    for (; i < size; ++i) {
      const float noise = noise_of(q[start + i]);
      minimum = noise < minimum ? noise : minimum;
    }
    minima[start / kChunk] = minimum;
    least = minimum < least ? minimum : least;
  }
  Contenders contenders;
  if (!(least > 0x1p-100F && least < 0x1p100F)) {
    contenders.is_open = true;
    return contenders;
  }
  const double limit = static_cast<double>(least) * ratio * (1.0 + 1e-6);
  float so_far = kInfinity;
  for (size_t start = 0; start < count; start += kChunk) {
    const float minimum = minima[start / kChunk];
    if (!(minimum < so_far)) {
      continue;
    }
    if (minimum <= limit) {
      const size_t end = count - start < kChunk ? count : start + kChunk;
      for (size_t vector = start; vector < end; vector += kLanes) {
        const size_t size = end - vector < kLanes ? end - vector : kLanes;
        if (size == kLanes && bits_of(is_greater(splat(so_far), noises_from(vector))) == 0) {
          continue;
        }
        for (size_t rank = vector; rank < vector + size; ++rank) {
          const float noise = noise_of(q[rank]);
          if (noise < so_far) {
            so_far = noise;
            if (noise <= limit && contenders.count < Contenders::kMost) {
              contenders.ranks[contenders.count++] = rank;
            } else {
              contenders.is_open |= noise <= limit;
            }
          }
        }
      }
    }
    so_far = minimum;
  }
  return contenders;
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
