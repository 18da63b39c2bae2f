// One row of the emulated aclnnTopKTopPSample: docs/semantics.md, written down once more.
#pragma once

#include "sampler.h"

namespace hostcann::opapi {

class RowSampler : OrderedRow {
 public:
  /// Returns the drawn id and writes selected_logits. `scratch` has kScratchBytesPerLogit *
  /// vocab_size bytes, aligned to 8. Should others write to it meanwhile, the result is wrong or
  /// ScratchChanged is thrown, but memory stays safe.
  int64_t sample(const RowArguments& arguments, std::byte* scratch);

 private:
  void decode();
  template <typename Probability>
  int64_t count_nucleus(int64_t limit, Probability probability) const;
  int64_t keep_top_k(bool use_p);
  int64_t keep_top_p();
  template <typename Id>
  int64_t draw(int64_t kept, Id id) const;
  template <typename Id>
  void write_selected(int64_t kept, Id id) const;

  RowArguments arguments_;
  float largest_ = 0.0f;
};

}  // namespace hostcann::opapi
