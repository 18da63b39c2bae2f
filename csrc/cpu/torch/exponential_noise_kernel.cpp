// exponential_noise for CPU tensors: parts of rows in parallel, each by the core of targets.h.
#include <torch/library.h>

#include <algorithm>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"

namespace ascend_sample::cpu {
namespace {

at::Tensor exponential_noise_kernel(const NoiseArguments& arguments) {
  constexpr int64_t kPart = 1 << 14;  // lanes, even
  const auto& [lanes, keys, first_lane] = arguments;
  const auto& [seed, position, purpose] = keys;
  arguments.check();
  at::Tensor noise = arguments.allocate_outputs();
  auto* const out = noise.mutable_data_ptr<float>();
  const auto* const seeds = seed.const_data_ptr<int64_t>();
  const auto* const positions = position.const_data_ptr<int64_t>();
  const Kernel& kernel = *target_in_use().kernel;
  const int64_t parts = (lanes + kPart - 1) / kPart;  // of a row
  const int64_t grain = std::max<int64_t>(1, kPart / std::max<int64_t>(1, lanes));
  at::parallel_for(0, seed.size(0) * parts, grain, [&](int64_t first, int64_t last) {
    const StandardArithmetic standard;
    for (int64_t index = first; index < last; ++index) {
      const int64_t row = index / parts;
      const int64_t start = index % parts * kPart;
      const NoiseKey key{seeds[row * seed.stride(0)], positions[row * position.stride(0)],
                         static_cast<uint32_t>(purpose)};
      kernel.fill_noise(key, static_cast<uint64_t>(first_lane + start),
                        static_cast<size_t>(std::min(kPart, lanes - start)),
                        out + row * lanes + start);
    }
  });
  return noise;
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(NoiseArguments::kName, adapted<&exponential_noise_kernel>);
}

}  // namespace ascend_sample::cpu
