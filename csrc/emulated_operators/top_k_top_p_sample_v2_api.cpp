// The emulated aclnnTopKTopPSampleV2: its ABI, phase 1's checks and the loop over the rows.
#include "hostcann/opapi.h"
#include "sampler.h"
#include "top_k_top_p_sample_v2_row.h"

namespace hostcann::opapi {

namespace {

/// The operator's tiling looks at the shape of an output only where it is wanted.
Extent extent_if(bool wanted, Extent extent) { return wanted ? extent : Extent::kAny; }

struct Options {
  double eps;
  bool need_logits;
  int64_t top_k_guess, ks_max;
  bool input_is_logits, need_sample_result;
};

int check_options(const char* op, const Options& options, const aclTensor* q) {
  if (options.ks_max < 1 || options.ks_max > kMaximumTopK) {
    return reject(kAclnnTiling, op, "ksMax",
                  "must be in [1, 1024], got " + std::to_string(options.ks_max));
  }
  if (options.need_sample_result && q != nullptr) {
    Operand operand;
    if (int status = describe(op, "qOptional", q, &operand)) return status;
    return reject(kAclnnTiling, op, "qOptional",
                  "must be null when isNeedSampleResult is true" + got(operand));
  }
  return kSuccess;
}

void sample_rows(Launch& launch, const Options& options) {
  const SamplerRows rows(launch, options.eps, options.need_logits, options.top_k_guess);
  const Operand& min_ps = launch.input(4);
  const Floats min_p = min_ps.defined() ? entries_of(min_ps) : Floats();
  const Matrix<int64_t> dense_ids(launch.output(2), options.need_sample_result);
  const Matrix<float> dense_weights(launch.output(3), options.need_sample_result);

  RowSamplerV2 sampler;
  for (int64_t row = 0; row < rows.batch_size(); ++row) {
    SampleV2Arguments arguments(rows[row]);
    if (min_ps.defined()) arguments.min_p = min_p[row];
    arguments.ks_max = options.ks_max;
    arguments.input_is_logits = options.input_is_logits;
    arguments.dense_ids = dense_ids.row(row);
    arguments.dense_weights = dense_weights.row(row);
    const int64_t id = sampler.sample(arguments, rows.scratch(row));
    // With isNeedSampleResult the operator's documentation promises no index: none is written.
    if (!options.need_sample_result) rows.write_id(row, id);
  }
}

}  // namespace
}  // namespace hostcann::opapi

using namespace hostcann::opapi;  // NOLINT: what follows is CANN's C interface, at global scope

HOSTCANN_ACLNN(aclnnTopKTopPSampleV2, const aclTensor* logits, const aclTensor* top_k,
               const aclTensor* top_p, const aclTensor* q_optional,
               const aclTensor* min_ps_optional, double eps, bool is_need_logits,
               int64_t top_k_guess, int64_t ks_max, bool input_is_logits,
               bool is_need_sample_result, const aclTensor* logits_select_idx_out,
               const aclTensor* logits_top_kp_select_out, const aclTensor* logits_idx_out,
               const aclTensor* logits_sort_masked_out) {
  const SamplerArguments arguments{
      {{{"logits", logits},
        Extent::kLogits,
        {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat}},
       {{"topK", top_k}, Extent::kBatch, {DataType::kInt32}},
       {{"topP", top_p}, Extent::kBatch, {}},
       {{"qOptional", q_optional, true}, Extent::kLogits, {DataType::kFloat}},
       {{"minPsOptional", min_ps_optional, true}, Extent::kBatch, {}}},
      {{{"logitsSelectIdxOut", logits_select_idx_out, false, touched_if(!is_need_sample_result)},
        extent_if(!is_need_sample_result, Extent::kBatch),
        {DataType::kInt64}},
       {{"logitsTopKpSelectOut", logits_top_kp_select_out, false, touched_if(is_need_logits)},
        extent_if(is_need_logits, Extent::kLogits),
        {DataType::kFloat}},
       {{"logitsIdxOut", logits_idx_out, false, touched_if(is_need_sample_result)},
        extent_if(is_need_sample_result, Extent::kLogits),
        {DataType::kInt64}},
       {{"logitsSortMaskedOut", logits_sort_masked_out, false, touched_if(is_need_sample_result)},
        extent_if(is_need_sample_result, Extent::kLogits),
        {DataType::kFloat}}},
  };
  const Options options{eps,    is_need_logits,  top_k_guess,
                        ks_max, input_is_logits, is_need_sample_result};
  if (int status =
          check_sampler(__func__, arguments, {"Ascend910B", "Ascend910_93", "Ascend950"})) {
    return status;
  }
  if (int status = check_options(__func__, options, q_optional)) return status;
  const auto sample = [options](Launch& launch) { sample_rows(launch, options); };
  return make_sampler(__func__, arguments, sample, workspace_size, executor);
}
