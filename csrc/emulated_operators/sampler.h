// What both sampling operators do alike: the checks of phase 1, and the loop over the rows.
#pragma once

#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "hostcann/opapi.h"
#include "ordered_row.h"

namespace hostcann::opapi {

/// The shape of an argument.
enum class Extent { kBatch, kLogits, kAny };  // [batch], [batch, vocab_size], not looked at

/// Of an output that may not be wanted.
inline Touched touched_if(bool wanted) { return wanted ? Touched::kAll : Touched::kNothing; }

/// An argument of a sampling operator, and what it has to be.
struct SamplerArgument : Argument {
  Extent extent;
  std::vector<DataType> types;  // empty: that of the logits
};

/// The arguments; the first inputs are logits, topK, topP and qOptional, the first outputs the ids
/// and the kept logits.
struct SamplerArguments {
  std::vector<SamplerArgument> inputs;
  std::vector<SamplerArgument> outputs;
};

/// ", got float16 [4, 8]".
std::string got(const Operand& operand);

/// Phase 1's checks in CANN's order: the handles, the data types (161002), the SoC, whose name has
/// to begin with one of `series` (561003), the shapes (561002, or `of_shapes`). More logits than
/// the operators' arithmetic can count, and more than `most_rows` for which a kernel has room, are
/// refused too: CANN lets them through, and the kernel then writes elsewhere.
int check_sampler(const char* op, const SamplerArguments& arguments,
                  std::initializer_list<const char*> series,
                  int64_t most_rows = std::numeric_limits<int64_t>::max(),
                  int of_shapes = kAclnnTiling);

/// What a row of either operator reads and writes.
struct RowArguments {
  Floats logits;
  int64_t vocab_size = 0;
  int64_t top_k = 0;
  float top_p = 1.0f;
  StridedRow<const float> q;  // data == nullptr: no draw
  double eps = 0.0;
  int64_t top_k_guess = 0;
  StridedRow<float> selected_logits;  // data == nullptr: not wanted

  /// The score of a weight with the noise at `place`: NaN where that is, 0 for 0/0.
  double score(float weight, int64_t place) const;
};

/// The rows of a launch.
class SamplerRows {
 public:
  SamplerRows(Launch& launch, double eps, bool need_logits, int64_t top_k_guess);

  int64_t batch_size() const { return launch_.input(0).sizes[0]; }
  RowArguments operator[](int64_t row) const;

  /// Each row has its own part of the workspace, as on a device whose cores take the rows side by
  /// side: kScratchBytesPerLogit * vocab_size bytes, aligned to 8.
  std::byte* scratch(int64_t row) const;

  /// Writes the id that a row has drawn.
  void write_id(int64_t row, int64_t id) const;

 private:
  Launch& launch_;
  double eps_;
  int64_t top_k_guess_;
  const std::byte* first_logit_;
  const int32_t* top_k_;
  Floats top_p_;
  Matrix<const float> q_;
  Matrix<float> selected_logits_;
};

/// The end of phase 1: an executor with the workspace of the rows. `sample` gets the launch, which
/// has rows; what others did to its workspace meanwhile is reported as a violation.
int make_sampler(const char* op, const SamplerArguments& arguments, Kernel sample,
                 uint64_t* workspace_size, aclOpExecutor** executor);

}  // namespace hostcann::opapi
