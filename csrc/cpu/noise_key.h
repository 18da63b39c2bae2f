// What names the noise of a row.
#pragma once

#include <cstdint>

namespace ascend_sample::cpu {

/// What a row's noise is a function of, besides the lane: ascend_sample/sampling/draws/noise.py.
struct NoiseKey {
  int64_t seed;
  int64_t position;
  uint32_t purpose;
};

}  // namespace ascend_sample::cpu
