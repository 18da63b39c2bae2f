// One row of the emulated aclnnTopKTopPSample, on host memory: docs/semantics.md, written down once
// more.
//
// Plain and sequential on purpose, and sharing nothing with any other implementation of the
// operator: the parity tests compare two independent readings of one text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "hostcann/opapi/opapi.h"

namespace hostcann::opapi {

/// A row inside a strided matrix: element i is at data[i * stride].
template <typename Element>
struct StridedRow {
  Element* data = nullptr;
  int64_t stride = 1;
  Element& operator[](int64_t index) const { return data[index * stride]; }
};

struct SampleArguments {
  StridedRow<const uint16_t> logits;            // the bits of `logits_type`
  DataType logits_type = DataType::kUndefined;  // kFloat16 or kBFloat16
  int64_t vocab_size = 0;
  int64_t top_k = 0;
  float top_p = 1.0f;
  StridedRow<const float> q;  // data == nullptr: no draw
  double eps = 0.0;
  int64_t top_k_guess = 0;
  StridedRow<float> selected_logits;  // data == nullptr: not wanted
};

/// The most entries that top-k and the guess of top-p can have.
inline constexpr int64_t kMaximumTopK = 1024;

/// Scratch that a row needs, in bytes for each entry of the vocabulary: what the device's operator
/// asks for, about.
inline constexpr int64_t kScratchBytesPerLogit = 24;

/// The scratch holds something that the row did not put there.
struct ScratchChanged : std::runtime_error {
  ScratchChanged() : std::runtime_error("workspace was written by others while the kernel ran") {}
};

class RowSampler {
 public:
  /// Returns the drawn id and writes selected_logits. `scratch` has kScratchBytesPerLogit *
  /// vocab_size bytes, aligned to 8. Should others write to it meanwhile, the result is wrong or
  /// ScratchChanged is thrown, but memory stays safe.
  int64_t sample(const SampleArguments& arguments, std::byte* scratch);

 private:
  void decode();
  void order_first(int64_t count);
  template <typename Value>
  void softmax(int64_t count, Value value);
  template <typename Probability>
  int64_t count_nucleus(int64_t limit, Probability probability) const;
  int64_t keep_top_k(bool use_p);
  int64_t keep_top_p();
  template <typename Id>
  int64_t draw(int64_t kept, Id id) const;
  template <typename Id>
  void write_selected(int64_t kept, Id id) const;
  int64_t ranked_id(int64_t rank) const;

  SampleArguments arguments_;
  int64_t vocab_size_ = 0;
  float largest_ = 0.0f;

  // The scratch, cut into four arrays of vocab_size.
  double* exponentials_ = nullptr;
  uint64_t* order_ =
      nullptr;  // the total order as sort keys: by rank, the first `ordered` of them valid
  float* values_ = nullptr;  // the logits by id, NaN replaced
  float* weights_ = nullptr;

  // Sorted outside the scratch: std::sort may leave its range when others change what it sorts.
  std::vector<uint64_t> keys_;
};

}  // namespace hostcann::opapi
