// The emulated aclnnApplyTopKTopP: docs/semantics_apply.md, written down once more. It takes a k
// as CANN 9.0 does, from 1 to the vocabulary size; what a device would read for another fails here.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "hostcann/opapi.h"
#include "sampler.h"

namespace hostcann::opapi {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// A row of logits, and what the filters leave of it: ids in ascending order of their values.
class FilteredRow {
 public:
  /// `scratch` has room for kScratchBytesPerLogit bytes a logit.
  FilteredRow(const Floats& logits, int64_t vocab_size, std::byte* scratch)
      : vocab_size_(vocab_size),
        values_(reinterpret_cast<float*>(scratch)),
        order_(reinterpret_cast<int32_t*>(scratch + 4 * vocab_size)),
        first_(0) {
    for (int64_t id = 0; id < vocab_size; ++id) {
      values_[id] = std::isnan(logits[id]) ? kMinusInfinity : logits[id];
    }
    std::vector<int32_t> order(static_cast<size_t>(vocab_size));
    std::iota(order.begin(), order.end(), 0);
    const std::vector<float> values(values_, values_ + vocab_size);  // others may write to those
    std::stable_sort(order.begin(), order.end(), [&](int32_t left, int32_t right) {
      return values[static_cast<size_t>(left)] < values[static_cast<size_t>(right)];
    });
    std::copy(order.begin(), order.end(), order_);
  }

  void keep_top_k(int64_t k) {
    if (k < 1 || k > vocab_size_) {
      throw std::runtime_error("aclnnApplyTopKTopP: k is " + std::to_string(k) + ", not in [1, " +
                               std::to_string(vocab_size_) + "]: the kernel reads beside the row");
    }
    first_ = vocab_size_ - k;
    while (first_ > 0 && value(first_ - 1) == value(vocab_size_ - k)) --first_;
  }

  void keep_top_p(float p) {
    const float largest = value(vocab_size_ - 1);
    const auto exponential = [&](int64_t place) {
      if (std::isinf(largest)) return value(place) == largest ? 1.0 : 0.0;
      return std::exp(static_cast<double>(value(place)) - static_cast<double>(largest));
    };
    double whole = 0.0;
    for (int64_t place = first_; place < vocab_size_; ++place) whole += exponential(place);
    const double tail = 1.0f - p;
    double sum = 0.0;
    for (; first_ < vocab_size_ - 1; ++first_) {
      sum += static_cast<double>(static_cast<float>(exponential(first_) / whole));
      if (!(sum <= tail)) return;
    }
  }

  /// Calls `write` with each id that is kept, but for what counts as -inf.
  template <typename Write>
  void for_each_kept(Write write) const {
    for (int64_t place = first_; place < vocab_size_; ++place) {
      if (value(place) != kMinusInfinity) write(id(place));
    }
  }

 private:
  int64_t id(int64_t place) const {
    const int64_t found = order_[place];
    if (found < 0 || found >= vocab_size_) throw ScratchChanged();
    return found;
  }
  float value(int64_t place) const { return values_[id(place)]; }

  int64_t vocab_size_;
  float* values_;
  int32_t* order_;
  int64_t first_;  // place in the order of the first that is kept
};

uint32_t minus_infinity_of(DataType type) {
  if (type == DataType::kFloat) return 0xFF80'0000u;
  return type == DataType::kFloat16 ? 0xFC00u : 0xFF80u;
}

/// Writes the rows. An `Element` has as many bytes as a logit, whose bits stay as they are.
template <typename Element>
void filter_rows(const Launch& launch) {
  const Operand &logits = launch.input(0), &ps = launch.input(1), &ks = launch.input(2);
  const int64_t vocab_size = logits.sizes[1];
  const Matrix<const Element> from(logits, true);
  const Matrix<Element> to(launch.output(0), true);
  const auto dropped = static_cast<Element>(minus_infinity_of(logits.data_type));
  const Floats p = ps.defined() ? entries_of(ps) : Floats();
  const auto* k = ks.defined() ? reinterpret_cast<const int32_t*>(ks.resolve()) : nullptr;
  const auto* first_logit = reinterpret_cast<const std::byte*>(from.data);
  for (int64_t row = 0; row < logits.sizes[0]; ++row) {
    FilteredRow filtered(row_of(logits, first_logit, row), vocab_size,
                         launch.workspace() + row * vocab_size * kScratchBytesPerLogit);
    if (k != nullptr) filtered.keep_top_k(k[row * ks.strides[0]]);
    if (ps.defined()) filtered.keep_top_p(p[row]);
    for (int64_t id = 0; id < vocab_size; ++id) to.row(row)[id] = dropped;
    filtered.for_each_kept([&](int64_t id) { to.row(row)[id] = from.row(row)[id]; });
  }
}

}  // namespace
}  // namespace hostcann::opapi

using namespace hostcann;         // NOLINT: what follows is CANN's C interface, at global scope
using namespace hostcann::opapi;  // NOLINT

HOSTCANN_ACLNN(aclnnApplyTopKTopP, const aclTensor* logits, const aclTensor* p, const aclTensor* k,
               aclTensor* out) {
  const SamplerArguments arguments{
      {{{"logits", logits},
        Extent::kLogits,
        {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat}},
       {{"p", p, true}, Extent::kBatch, {}},
       {{"k", k, true}, Extent::kBatch, {DataType::kInt32}}},
      {{{"out", out}, Extent::kLogits, {}}},
  };
  if (p == nullptr && k == nullptr) {
    return reject(kAclnnNullptr, __func__, "p and k", "must not both be null");
  }
  constexpr int64_t kAnyRows = std::numeric_limits<int64_t>::max();
  if (int status = check_sampler(__func__, arguments, {"Ascend910B", "Ascend910_93", "Ascend950"},
                                 kAnyRows, kAclnnInvalid)) {
    return status;
  }
  const auto filter = [](Launch& launch) {
    if (launch.input(0).item_size() == 4) return filter_rows<uint32_t>(launch);
    filter_rows<uint16_t>(launch);
  };
  return make_sampler(__func__, arguments, filter, workspace_size, executor);
}
