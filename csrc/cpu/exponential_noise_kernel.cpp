// exponential_noise for CPU tensors: parts of rows in parallel, each by the core of sample_rows.h.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>

#include "dispatch.h"
#include "sampling_checks.h"

namespace ascend_sample::cpu {
namespace {

at::Tensor exponential_noise_kernel(const at::Tensor& seed, const at::Tensor& position,
                                    int64_t lanes, int64_t stream, int64_t first_lane) {
  constexpr int64_t kPart = 1 << 14;  // lanes, even
  const NoiseArguments arguments{seed, position, lanes, stream, first_lane};
  check_arguments(arguments);
  at::Tensor noise = allocate_outputs(arguments);
  auto* const out = noise.mutable_data_ptr<float>();
  const auto* const seeds = seed.const_data_ptr<int64_t>();
  const auto* const positions = position.const_data_ptr<int64_t>();
  const Capability capability = capability_in_use();
  const int64_t parts = (lanes + kPart - 1) / kPart;  // of a row
  const int64_t grain = std::max<int64_t>(1, kPart / std::max<int64_t>(1, lanes));
  at::parallel_for(0, seed.size(0) * parts, grain, [&](int64_t first, int64_t last) {
    for (int64_t index = first; index < last; ++index) {
      const int64_t row = index / parts;
      const int64_t start = index % parts * kPart;
      const NoiseKey key{seeds[row * seed.stride(0)], positions[row * position.stride(0)],
                         static_cast<uint32_t>(stream)};
      exponential_noise(capability, key, static_cast<uint64_t>(first_lane + start),
                        static_cast<size_t>(std::min(kPart, lanes - start)),
                        out + row * lanes + start);
    }
  });
  return noise;
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl("exponential_noise", &exponential_noise_kernel);
}

}  // namespace ascend_sample::cpu
