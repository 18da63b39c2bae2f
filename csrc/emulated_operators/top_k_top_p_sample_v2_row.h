// One row of the emulated aclnnTopKTopPSampleV2: docs/semantics_v2.md, written down once more.
#pragma once

#include "sampler.h"

namespace hostcann::opapi {

/// The logits are probabilities where `input_is_logits` is false.
struct SampleV2Arguments : RowArguments {
  explicit SampleV2Arguments(const RowArguments& common = {}) : RowArguments(common) {}

  float min_p = 0.0f;
  int64_t ks_max = 0;
  bool input_is_logits = true;
  // data == nullptr: not wanted
  StridedRow<int64_t> dense_ids;
  StridedRow<float> dense_weights;
};

class RowSamplerV2 : OrderedRow {
 public:
  /// Returns the drawn id and writes the outputs that are wanted; dense_ids only where entries are
  /// kept. `scratch` as for RowSampler.
  int64_t sample(const SampleV2Arguments& arguments, std::byte* scratch);

 private:
  void decode();
  int64_t best_id() const;
  bool weighs_nothing(int64_t id) const;
  void take(int64_t count, bool by_place);
  void weigh(int64_t count);
  void rank_whole_row();
  int64_t nucleus(int64_t limit, bool by_place) const;
  void filter_by_min_p(bool ranked);
  int64_t draw() const;
  void write_outputs() const;

  SampleV2Arguments arguments_;
  // The kept entries, in the order in which q is read.
  std::vector<int64_t> kept_ids_;
  std::vector<float> kept_weights_;
};

}  // namespace hostcann::opapi
