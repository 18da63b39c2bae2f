// The emulated aclnnTopKTopPSample: its ABI, phase 1's checks and the loop over the rows.
//
// The parameter order is that of the generated public header; CANN's documentation page prints an
// older one.
#include "hostcann/opapi.h"
#include "sampler.h"
#include "top_k_top_p_sample_row.h"

using namespace hostcann::opapi;  // NOLINT: what follows is CANN's C interface, at global scope

HOSTCANN_ACLNN(aclnnTopKTopPSample, const aclTensor* logits, const aclTensor* top_k,
               const aclTensor* top_p, const aclTensor* q_optional, double eps, bool is_need_logits,
               int64_t top_k_guess, const aclTensor* logits_select_idx_out,
               const aclTensor* logits_top_kp_select_out) {
  const SamplerArguments arguments{
      {{{"logits", logits}, Extent::kLogits, {DataType::kFloat16, DataType::kBFloat16}},
       {{"topK", top_k}, Extent::kBatch, {DataType::kInt32}},
       {{"topP", top_p}, Extent::kBatch, {}},
       {{"qOptional", q_optional, true}, Extent::kLogits, {DataType::kFloat}}},
      {{{"logitsSelectIdxOut", logits_select_idx_out}, Extent::kBatch, {DataType::kInt64}},
       {{"logitsTopKpSelectOut", logits_top_kp_select_out, false, touched_if(is_need_logits)},
        Extent::kLogits,
        {DataType::kFloat}}},
  };
  // Atlas A2 and A3. The SoC names of A2 are Ascend910B1, Ascend910B2C, ... They have 40 vector
  // cores at least, and the kernel's lists have 128 rows for each.
  constexpr int64_t kMostRows = 128 * 40;
  if (int status = check_sampler(__func__, arguments, {"Ascend910B", "Ascend910_93"}, kMostRows)) {
    return status;
  }
  const auto sample = [=](Launch& launch) {
    const SamplerRows rows(launch, eps, is_need_logits, top_k_guess);
    RowSampler sampler;
    for (int64_t row = 0; row < rows.batch_size(); ++row) {
      rows.write_id(row, sampler.sample(rows[row], rows.scratch(row)));
    }
  };
  return make_sampler(__func__, arguments, sample, workspace_size, executor);
}
