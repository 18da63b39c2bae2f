// The emulated aclnnTopKTopPSampleV2: its ABI, phase 1's checks and the loop over the rows.
#include "hostcann/opapi/opapi.h"
#include "hostcann/opapi/sampler_checks.h"
#include "hostcann/opapi/top_k_top_p_sample_v2_row.h"

namespace hostcann::opapi {

namespace {

struct Tensors {
  Operand logits, top_k, top_p, q, min_ps;
  Operand selected_index, selected_logits, dense_ids, dense_weights;
};

struct Options {
  double eps;
  bool need_logits;
  int64_t top_k_guess, ks_max;
  bool input_is_logits, need_sample_result;
};

int check_data_types(const char* op, const Tensors& tensors) {
  const auto float_types = {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat};
  if (int status = check_type(op, "logits", tensors.logits, float_types)) return status;
  if (int status = check_type(op, "topK", tensors.top_k, {DataType::kInt32})) return status;
  if (int status = check_type_of_logits(op, "topP", tensors.top_p, tensors.logits)) return status;
  if (tensors.q.defined()) {
    if (int status = check_type(op, "qOptional", tensors.q, {DataType::kFloat})) return status;
  }
  if (tensors.min_ps.defined()) {
    if (int status = check_type_of_logits(op, "minPsOptional", tensors.min_ps, tensors.logits)) {
      return status;
    }
  }
  if (int status =
          check_type(op, "logitsSelectIdxOut", tensors.selected_index, {DataType::kInt64})) {
    return status;
  }
  if (int status =
          check_type(op, "logitsTopKpSelectOut", tensors.selected_logits, {DataType::kFloat})) {
    return status;
  }
  if (int status = check_type(op, "logitsIdxOut", tensors.dense_ids, {DataType::kInt64})) {
    return status;
  }
  return check_type(op, "logitsSortMaskedOut", tensors.dense_weights, {DataType::kFloat});
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
  if (tensors.min_ps.defined()) {
    if (int status = check_shape(op, "minPsOptional", tensors.min_ps, batch)) return status;
  }
  if (int status = check_shape(op, "logitsSelectIdxOut", tensors.selected_index, batch)) {
    return status;
  }
  // All three also when they are not wanted.
  if (int status = check_shape(op, "logitsTopKpSelectOut", tensors.selected_logits, sizes)) {
    return status;
  }
  if (int status = check_shape(op, "logitsIdxOut", tensors.dense_ids, sizes)) return status;
  return check_shape(op, "logitsSortMaskedOut", tensors.dense_weights, sizes);
}

int check_options(const char* op, const Tensors& tensors, const Options& options) {
  if (options.ks_max < 1 || options.ks_max > kMaximumTopK) {
    return reject(kAclnnTiling, op, "ksMax",
                  "must be in [1, 1024], got " + std::to_string(options.ks_max));
  }
  if (options.need_sample_result && tensors.q.defined()) {
    return reject(kAclnnTiling, op, "qOptional",
                  "must be null when isNeedSampleResult is true" + got(tensors.q));
  }
  return kSuccess;
}

void sample_rows(Launch& launch, const Options& options) {
  const Operand& logits = launch.input(0);
  const int64_t batch = logits.sizes[0];
  const int64_t vocab_size = logits.sizes[1];
  if (batch == 0) return;
  const Operand& min_ps = launch.input(4);
  const std::byte* first_logit = logits.resolve();
  const auto* top_k = reinterpret_cast<const int32_t*>(launch.input(1).resolve());
  const std::byte* top_p = launch.input(2).resolve();
  const std::byte* min_p = min_ps.defined() ? min_ps.resolve() : nullptr;
  const Matrix<const float> q_rows(launch.input(3), launch.input(3).defined());
  const Matrix<float> selected_rows(launch.output(1), options.need_logits);
  const Matrix<int64_t> id_rows(launch.output(2), options.need_sample_result);
  const Matrix<float> weight_rows(launch.output(3), options.need_sample_result);
  // With isNeedSampleResult the operator's documentation promises no index: none is written.
  auto* selected_index =
      options.need_sample_result ? nullptr : reinterpret_cast<int64_t*>(launch.output(0).resolve());

  RowSamplerV2 sampler;
  for (int64_t row = 0; row < batch; ++row) {
    SampleV2Arguments arguments;
    arguments.logits = row_of(logits, first_logit, row);
    arguments.vocab_size = vocab_size;
    arguments.top_k = top_k[row * launch.input(1).strides[0]];
    arguments.top_p = decode_float(top_p, row * launch.input(2).strides[0], logits.data_type);
    if (min_p != nullptr) {
      arguments.min_p = decode_float(min_p, row * min_ps.strides[0], logits.data_type);
    }
    arguments.q = q_rows.row(row);
    arguments.eps = options.eps;
    arguments.top_k_guess = options.top_k_guess;
    arguments.ks_max = options.ks_max;
    arguments.input_is_logits = options.input_is_logits;
    arguments.selected_logits = selected_rows.row(row);
    arguments.dense_ids = id_rows.row(row);
    arguments.dense_weights = weight_rows.row(row);
    std::byte* scratch = launch.workspace() + row * vocab_size * kScratchBytesPerLogit;
    const int64_t selected = sampler.sample(arguments, scratch);
    if (selected_index != nullptr) {
      selected_index[row * launch.output(0).strides[0]] = selected;
    }
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
  Tensors tensors;
  if (int status = describe(__func__, "logits", logits, &tensors.logits)) return status;
  if (int status = describe(__func__, "topK", top_k, &tensors.top_k)) return status;
  if (int status = describe(__func__, "topP", top_p, &tensors.top_p)) return status;
  if (q_optional != nullptr) {
    if (int status = describe(__func__, "qOptional", q_optional, &tensors.q)) return status;
  }
  if (min_ps_optional != nullptr) {
    if (int status = describe(__func__, "minPsOptional", min_ps_optional, &tensors.min_ps)) {
      return status;
    }
  }
  const struct {
    const char* name;
    const aclTensor* tensor;
    Operand* operand;
  } outputs[] = {
      {"logitsSelectIdxOut", logits_select_idx_out, &tensors.selected_index},
      {"logitsTopKpSelectOut", logits_top_kp_select_out, &tensors.selected_logits},
      {"logitsIdxOut", logits_idx_out, &tensors.dense_ids},
      {"logitsSortMaskedOut", logits_sort_masked_out, &tensors.dense_weights},
  };
  for (const auto& output : outputs) {
    if (int status = describe(__func__, output.name, output.tensor, output.operand)) return status;
  }
  const Options options{eps,    is_need_logits,  top_k_guess,
                        ks_max, input_is_logits, is_need_sample_result};
  if (int status = check_data_types(__func__, tensors)) return status;
  if (int status = check_soc(__func__, {"Ascend910B", "Ascend910_93", "Ascend950"})) return status;
  if (int status = check_shapes(__func__, tensors)) return status;
  if (int status = check_options(__func__, tensors, options)) return status;

  const auto workspace_bytes =
      static_cast<uint64_t>(tensors.logits.numel()) * kScratchBytesPerLogit;
  return make_executor(
      __func__,
      {{"logits", logits},
       {"topK", top_k},
       {"topP", top_p},
       {"qOptional", q_optional, true},
       {"minPsOptional", min_ps_optional, true}},
      {{outputs[0].name, outputs[0].tensor},
       {outputs[1].name, outputs[1].tensor},
       {outputs[2].name, outputs[2].tensor},
       {outputs[3].name, outputs[3].tensor}},
      workspace_bytes,
      [options](Launch& launch) {
        run_in_workspace("aclnnTopKTopPSampleV2", [&] { sample_rows(launch, options); });
      },
      workspace_size, executor);
}
