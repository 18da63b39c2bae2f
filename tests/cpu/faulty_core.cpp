// A core with a fault, by which the tests see that the fuzzer finds faults: the oracle as "plain",
// and as "avx512" the oracle with the fault that FAULTY_CORE names. A fault of distributions is in
// both, so that comparing the two does not find it.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "cpu/sample_rows.h"
#include "oracle.h"

namespace ascend_sample::cpu {

void Scratch::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, std::align_val_t{64});
}

std::byte* Scratch::reserve(Slot slot, size_t bytes) {
  Block& block = blocks_[slot];
  if (bytes > block.bytes) {
    block.memory.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
    block.bytes = bytes;
  }
  return block.memory.get();
}

std::string_view name_of(Capability capability) {
  return capability == Capability::kPlain ? "plain" : "avx512";
}

bool is_available(Capability capability) {
  return capability == Capability::kPlain || capability == Capability::kAvx512;
}

void exponential_noise(Capability /*capability*/, const NoiseKey& /*key*/, uint64_t /*first_lane*/,
                       size_t count, float* out) {
  std::fill_n(out, count, 1.0F);
}

namespace {

/// Without the last of several entries that are kept; the others share its mass.
void shorten(std::vector<float>& distribution) {
  size_t last = 0;
  double left = 0;
  for (size_t id = 0; id < distribution.size(); ++id) {
    const bool is_last =
        distribution[id] > 0 && !(distribution[last] > 0 && distribution[id] > distribution[last]);
    last = is_last ? id : last;
    left += distribution[id];
  }
  left -= distribution[last];
  for (float& probability : distribution) {
    probability = left > 0 ? static_cast<float>(probability / left) : probability;
  }
  distribution[last] = left > 0 ? 0.0F : distribution[last];
}

void spoil(const std::string& fault, std::vector<float>& distribution) {
  if (fault == "distribution: short") {
    shorten(distribution);
  }
  for (float& probability : distribution) {
    if (fault == "distribution: heavy") {
      probability *= 1 + 1e-5F;
    } else if (fault == "distribution: leak") {
      probability = probability == 0 ? 1e-30F : probability;
    } else if (fault == "distribution: zeros") {
      probability = std::isnan(probability) ? 0.0F : probability;
    }
  }
}

}  // namespace

void sample_rows(Capability capability, const Batch& batch, int64_t first_row, int64_t last_row,
                 Scratch& /*scratch*/) {
  const std::string fault_of_all = std::getenv("FAULTY_CORE");
  const std::string fault = capability == Capability::kPlain ? "" : fault_of_all;
  for (int64_t index = first_row; index < last_row; ++index) {
    testing::Row row(batch, index);
    if (fault == "tail" && row.logits.size() % 16 == 1) {  // the last logit is not looked at
      row.logits.back() = row.nothing();
    }
    while (fault == "hang" && row.logits.size() == 33) {
      pause();
    }
    const testing::Oracle oracle(row);
    if (batch.filtering != nullptr) {
      auto distribution = oracle.distribution();
      spoil(fault_of_all, distribution);
      std::copy(distribution.begin(), distribution.end(), batch.kept + index * batch.vocab_size);
      if (fault_of_all == "distribution: id") {
        batch.selected[index] = oracle.selected();
      }
      continue;
    }
    batch.selected[index] = oracle.selected();
    if (batch.sampling != nullptr) {
      batch.sampling->status[index] = row.status;
    }
    if (batch.dense_weights != nullptr) {
      const auto weights = oracle.dense_weights();
      const auto ids = oracle.dense_ids();
      std::copy(weights.begin(), weights.end(), batch.dense_weights + index * batch.vocab_size);
      std::copy(ids.begin(), ids.end(), batch.dense_ids + index * batch.vocab_size);
    }
    if (batch.kept == nullptr) {
      continue;
    }
    const auto kept = oracle.kept();
    std::copy(kept.begin(), kept.end(), batch.kept + index * batch.vocab_size);
    if (fault == "overrun") {
      batch.kept[(index + 1) * batch.vocab_size] = 0;
    }
  }
}

}  // namespace ascend_sample::cpu
