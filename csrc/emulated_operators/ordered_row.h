// A row of the emulated sampling operators, on host memory: its values in float32, their total
// order, and softmax.
//
// Plain and sequential on purpose, and sharing nothing with any other implementation of the
// operators: the parity tests compare two independent readings of one text.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "hostcann/half.h"
#include "hostcann/opapi.h"

namespace hostcann::opapi {

/// A row inside a strided matrix: element i is at data[i * stride].
template <typename Element>
struct StridedRow {
  Element* data = nullptr;
  int64_t stride = 1;
  Element& operator[](int64_t index) const { return data[index * stride]; }
};

/// The rows of a matrix that was wanted; without data otherwise.
template <typename Element>
struct Matrix {
  Element* data = nullptr;
  std::vector<int64_t> strides;

  Matrix(const Operand& operand, bool wanted) {
    if (!wanted) return;
    data = reinterpret_cast<Element*>(operand.resolve());
    strides = operand.strides;
  }

  StridedRow<Element> row(int64_t index) const {
    if (data == nullptr) return {};
    return {data + index * strides[0], strides[1]};
  }
};

/// Floating-point elements of a data type that is known when the kernel runs.
struct Floats {
  const std::byte* data = nullptr;
  int64_t stride = 1;  // in elements
  DataType type = DataType::kUndefined;

  float operator[](int64_t index) const { return decode_float(data, index * stride, type); }
};

/// Row `index` of a matrix.
inline Floats row_of(const Operand& operand, const std::byte* base, int64_t index) {
  const auto bytes = static_cast<int64_t>(operand.item_size());
  return {base + index * operand.strides[0] * bytes, operand.strides[1], operand.data_type};
}

/// The entries of a vector.
inline Floats entries_of(const Operand& operand) {
  return {operand.resolve(), operand.strides[0], operand.data_type};
}

/// The most entries that top-k and the guess of top-p can have.
inline constexpr int64_t kMaximumTopK = 1024;

/// Scratch that a row needs, in bytes for each entry of the vocabulary: what the device's operator
/// asks for, about.
inline constexpr int64_t kScratchBytesPerLogit = 24;

/// The scratch holds something that the row did not put there.
struct ScratchChanged : std::runtime_error {
  ScratchChanged() : std::runtime_error("workspace was written by others while the kernel ran") {}
};

class OrderedRow {
 protected:
  static constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

  /// Cuts `scratch` (kScratchBytesPerLogit * vocab_size bytes, aligned to 8) into the arrays below.
  void lay_out(std::byte* scratch, int64_t vocab_size);

  /// Puts the first `count` of the total order into order_.
  void order_first(int64_t count);

  /// The id at `rank` of the total order. Checked, because the scratch is memory that a caller's
  /// fault can change.
  int64_t ranked_id(int64_t rank) const {
    const int64_t id = static_cast<int64_t>(order_[rank] & 0xFFFF'FFFFu);
    if (id >= vocab_size_) throw ScratchChanged();
    return id;
  }

  /// weights_[i] = softmax(value(0) ... value(count - 1))[i] in float32, from exponentials and a
  /// sum in double. Infinite values share the whole mass; values that are all -inf have no weight.
  /// `value` may read weights_.
  template <typename Value>
  void softmax(int64_t count, Value value) {
    float largest = kMinusInfinity;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, value(i));
    if (largest == kMinusInfinity) {
      std::fill_n(weights_, count, 0.0f);
      return;
    }
    double sum = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      if (std::isinf(largest)) {
        exponentials_[i] = value(i) == largest ? 1.0 : 0.0;
      } else {
        exponentials_[i] = std::exp(static_cast<double>(value(i)) - static_cast<double>(largest));
      }
      sum += exponentials_[i];
    }
    for (int64_t i = 0; i < count; ++i) weights_[i] = static_cast<float>(exponentials_[i] / sum);
  }

  int64_t vocab_size_ = 0;

  // The scratch, cut into four arrays of vocab_size.
  double* exponentials_ = nullptr;
  uint64_t* order_ =
      nullptr;  // the total order as sort keys: by rank, the first `ordered` of them valid
  float* values_ = nullptr;  // the logits by id, special values replaced
  float* weights_ = nullptr;

 private:
  // Sorted outside the scratch: std::sort may leave its range when others change what it sorts.
  std::vector<uint64_t> keys_;
};

}  // namespace hostcann::opapi
