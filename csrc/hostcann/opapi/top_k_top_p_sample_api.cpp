// The emulated aclnnTopKTopPSample: its ABI, phase 1's checks and the loop over the rows.
//
// The parameter order is that of the generated public header; CANN's documentation page prints an
// older one.
#include "hostcann/opapi/opapi.h"
#include "hostcann/opapi/sampler_checks.h"
#include "hostcann/opapi/top_k_top_p_sample_row.h"

namespace hostcann::opapi {

namespace {

struct Tensors {
  Operand logits, top_k, top_p, q, selected_index, selected_logits;
};

int check_data_types(const char* op, const Tensors& tensors) {
  const auto half_types = {DataType::kFloat16, DataType::kBFloat16};
  if (int status = check_type(op, "logits", tensors.logits, half_types)) return status;
  if (int status = check_type(op, "topK", tensors.top_k, {DataType::kInt32})) return status;
  if (int status = check_type_of_logits(op, "topP", tensors.top_p, tensors.logits)) return status;
  if (tensors.q.defined()) {
    if (int status = check_type(op, "qOptional", tensors.q, {DataType::kFloat})) return status;
  }
  if (int status =
          check_type(op, "logitsSelectIdxOut", tensors.selected_index, {DataType::kInt64})) {
    return status;
  }
  return check_type(op, "logitsTopKpSelectOut", tensors.selected_logits, {DataType::kFloat});
}

int check_shapes(const char* op, const Tensors& tensors) {
  if (int status = check_logits_shape(op, tensors.logits)) return status;
  const std::vector<int64_t>& sizes = tensors.logits.sizes;
  const std::vector<int64_t> batch = {sizes[0]};
  if (int status = check_shape(op, "topK", tensors.top_k, batch)) return status;
  if (int status = check_shape(op, "topP", tensors.top_p, batch)) return status;
  if (tensors.q.defined()) {
    if (int status = check_shape(op, "qOptional", tensors.q, sizes)) return status;
  }
  if (int status = check_shape(op, "logitsSelectIdxOut", tensors.selected_index, batch))
    return status;
  // Also when isNeedLogits is false: the operator's tiling looks at it all the same.
  return check_shape(op, "logitsTopKpSelectOut", tensors.selected_logits, sizes);
}

void sample_rows(Launch& launch, double eps, bool need_logits, int64_t top_k_guess) {
  const Operand& logits = launch.input(0);
  const int64_t batch = logits.sizes[0];
  const int64_t vocab_size = logits.sizes[1];
  if (batch == 0) return;
  const std::byte* first_logit = logits.resolve();
  const Matrix<const float> q_rows(launch.input(3), launch.input(3).defined());
  const Matrix<float> selected_rows(launch.output(1), need_logits);
  const auto* top_k = reinterpret_cast<const int32_t*>(launch.input(1).resolve());
  const auto* top_p = launch.input(2).resolve();
  auto* selected_index = reinterpret_cast<int64_t*>(launch.output(0).resolve());

  RowSampler sampler;
  for (int64_t row = 0; row < batch; ++row) {
    SampleArguments arguments;
    arguments.logits = row_of(logits, first_logit, row);
    arguments.vocab_size = vocab_size;
    arguments.top_k = top_k[row * launch.input(1).strides[0]];
    arguments.top_p = decode_float(top_p, row * launch.input(2).strides[0], logits.data_type);
    arguments.q = q_rows.row(row);
    arguments.eps = eps;
    arguments.top_k_guess = top_k_guess;
    arguments.selected_logits = selected_rows.row(row);
    // Each row has its own part, as on a device whose cores take the rows side by side.
    std::byte* scratch = launch.workspace() + row * vocab_size * kScratchBytesPerLogit;
    selected_index[row * launch.output(0).strides[0]] = sampler.sample(arguments, scratch);
  }
}

}  // namespace
}  // namespace hostcann::opapi

using namespace hostcann::opapi;  // NOLINT: what follows is CANN's C interface, at global scope

HOSTCANN_ACLNN(aclnnTopKTopPSample, const aclTensor* logits, const aclTensor* top_k,
               const aclTensor* top_p, const aclTensor* q_optional, double eps, bool is_need_logits,
               int64_t top_k_guess, const aclTensor* logits_select_idx_out,
               const aclTensor* logits_top_kp_select_out) {
  Tensors tensors;
  if (int status = describe(__func__, "logits", logits, &tensors.logits)) return status;
  if (int status = describe(__func__, "topK", top_k, &tensors.top_k)) return status;
  if (int status = describe(__func__, "topP", top_p, &tensors.top_p)) return status;
  if (q_optional != nullptr) {
    if (int status = describe(__func__, "qOptional", q_optional, &tensors.q)) return status;
  }
  if (int status = describe(__func__, "logitsSelectIdxOut", logits_select_idx_out,
                            &tensors.selected_index)) {
    return status;
  }
  if (int status = describe(__func__, "logitsTopKpSelectOut", logits_top_kp_select_out,
                            &tensors.selected_logits)) {
    return status;
  }
  if (int status = check_data_types(__func__, tensors)) return status;
  // Atlas A2 and A3. The SoC names of A2 are Ascend910B1, Ascend910B2C, ...
  if (int status = check_soc(__func__, {"Ascend910B", "Ascend910_93"})) return status;
  if (int status = check_shapes(__func__, tensors)) return status;

  const auto workspace_bytes =
      static_cast<uint64_t>(tensors.logits.numel()) * kScratchBytesPerLogit;
  return make_executor(
      __func__,
      {{"logits", logits}, {"topK", top_k}, {"topP", top_p}, {"qOptional", q_optional, true}},
      {{"logitsSelectIdxOut", logits_select_idx_out},
       {"logitsTopKpSelectOut", logits_top_kp_select_out}},
      workspace_bytes,
      [eps, is_need_logits, top_k_guess](Launch& launch) {
        run_in_workspace("aclnnTopKTopPSample",
                         [&] { sample_rows(launch, eps, is_need_logits, top_k_guess); });
      },
      workspace_size, executor);
}
