// The floor: what it costs to have read some tensors once, front to back, and done next to nothing
// with them.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace ascend_sample::benchmarks {
namespace {

constexpr int64_t kBlock = 64 * 1024;  // bytes; a block is read by one thread
constexpr int64_t kFewestBlocks = 8;   // of one thread: less is not worth waking another one
constexpr int64_t kInFlight = 8;       // independent maxima, so that none waits for the one before

using Words = int32_t __attribute__((vector_size(64)));

/// The largest of the 32-bit words in [data, data + bytes); a rest of less than a step is left out.
int32_t largest_word(const std::byte* data, int64_t bytes) {
  Words largest[kInFlight] = {};
  constexpr auto kStep = static_cast<int64_t>(sizeof(largest));
  for (int64_t offset = 0; offset + kStep <= bytes; offset += kStep) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kInFlight; ++i) {
      Words words;
      std::memcpy(&words, data + offset + i * static_cast<int64_t>(sizeof(words)), sizeof(words));
      largest[i] = words > largest[i] ? words : largest[i];
    }
  }
  int32_t result = 0;
  for (const Words& words : largest) {
    for (size_t lane = 0; lane < sizeof(words) / sizeof(words[0]); ++lane) {
      result = std::max(result, words[lane]);
    }
  }
  return result;
}

/// Reads every byte of contiguous tensors, in blocks that threads share.
int64_t streaming_read(const at::TensorList tensors) {
  std::atomic<int32_t> largest = 0;  // the result keeps the compiler from leaving the reads out
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.is_contiguous(), "streaming_read: contiguous only");
    const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    at::parallel_for(0, (bytes + kBlock - 1) / kBlock, kFewestBlocks,
                     [&](int64_t begin, int64_t end) {
                       const int64_t first = begin * kBlock;
                       const int64_t last = std::min(end * kBlock, bytes);
                       const int32_t found = largest_word(data + first, last - first);
                       int32_t before = largest.load();
                       while (before < found && !largest.compare_exchange_weak(before, found)) {
                       }
                     });
  }
  return largest.load();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(ascend_sample_benchmarks, m) {
  m.def("streaming_read(Tensor[] tensors) -> int", &streaming_read);
}

}  // namespace ascend_sample::benchmarks
