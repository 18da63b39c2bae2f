#include "ordered_row.h"

#include <cstring>

namespace hostcann::opapi {

namespace {

/// A number whose ascending order is the total order: value descending, then id ascending, +0 equal
/// to -0.
uint64_t sort_key(float value, int64_t id) {
  const float canonical = value == 0.0f ? 0.0f : value;
  uint32_t bits;
  std::memcpy(&bits, &canonical, sizeof bits);
  // A float's bits ascend with its magnitude: negative ones descend as they are, the others once
  // inverted.
  const uint32_t descending = (bits >> 31) != 0 ? bits : ~(bits | 0x8000'0000u);
  return static_cast<uint64_t>(descending) << 32 | static_cast<uint64_t>(id);
}

}  // namespace

void OrderedRow::lay_out(std::byte* scratch, int64_t vocab_size) {
  vocab_size_ = vocab_size;
  exponentials_ = reinterpret_cast<double*>(scratch);
  order_ = reinterpret_cast<uint64_t*>(scratch + 8 * vocab_size_);
  values_ = reinterpret_cast<float*>(scratch + 16 * vocab_size_);
  weights_ = reinterpret_cast<float*>(scratch + 20 * vocab_size_);
}

void OrderedRow::order_first(int64_t count) {
  keys_.resize(static_cast<size_t>(vocab_size_));
  for (int64_t id = 0; id < vocab_size_; ++id)
    keys_[static_cast<size_t>(id)] = sort_key(values_[id], id);
  if (count < vocab_size_) {
    std::partial_sort(keys_.begin(), keys_.begin() + count, keys_.end());
  } else {
    std::sort(keys_.begin(), keys_.end());
  }
  std::copy_n(keys_.begin(), count, order_);
}

}  // namespace hostcann::opapi
