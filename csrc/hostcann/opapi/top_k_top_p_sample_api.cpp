// The emulated aclnnTopKTopPSample: its ABI, phase 1's checks and the loop over the rows.
//
// The parameter order is that of the generated public header; CANN's documentation page prints an
// older one.
#include "hostcann/opapi/half.h"
#include "hostcann/opapi/opapi.h"
#include "hostcann/opapi/top_k_top_p_sample_row.h"

namespace hostcann::opapi {

namespace {

constexpr int64_t kMaximumVocabSize = 1ll << 20;
constexpr int64_t kMaximumLogits =
    1ll << 32;  // B * V reaches this: 32-bit positions overflow inside the operator

/// Atlas A2 and A3. The SoC names of A2 are Ascend910B1, Ascend910B2C, ...
bool is_supported_soc(const std::string& name) {
  return name.rfind("Ascend910B", 0) == 0 || name.rfind("Ascend910_93", 0) == 0;
}

std::string got(const Operand& operand) {
  return ", got " + name_of(operand.data_type) + " " + name_of(operand.sizes);
}

struct Tensors {
  Operand logits, top_k, top_p, q, selected_index, selected_logits;
};

int check_data_types(const char* op, const Tensors& tensors) {
  const DataType type = tensors.logits.data_type;
  if (type != DataType::kFloat16 && type != DataType::kBFloat16) {
    return reject(kAclnnInvalid, op, "logits", "must be float16 or bfloat16" + got(tensors.logits));
  }
  if (tensors.top_k.data_type != DataType::kInt32) {
    return reject(kAclnnInvalid, op, "topK", "must be int32" + got(tensors.top_k));
  }
  if (tensors.top_p.data_type != type) {
    return reject(kAclnnInvalid, op, "topP",
                  "must have the data type of logits, " + name_of(type) + got(tensors.top_p));
  }
  if (tensors.q.defined() && tensors.q.data_type != DataType::kFloat) {
    return reject(kAclnnInvalid, op, "qOptional", "must be float32" + got(tensors.q));
  }
  if (tensors.selected_index.data_type != DataType::kInt64) {
    return reject(kAclnnInvalid, op, "logitsSelectIdxOut",
                  "must be int64" + got(tensors.selected_index));
  }
  if (tensors.selected_logits.data_type != DataType::kFloat) {
    return reject(kAclnnInvalid, op, "logitsTopKpSelectOut",
                  "must be float32" + got(tensors.selected_logits));
  }
  return kSuccess;
}

int check_shape(const char* op, const char* argument, const Operand& operand,
                const std::vector<int64_t>& expected) {
  if (operand.sizes == expected) return kSuccess;
  return reject(kAclnnTiling, op, argument,
                "must have shape " + name_of(expected) + " to match logits" + got(operand));
}

int check_shapes(const char* op, const Tensors& tensors) {
  const std::vector<int64_t>& sizes = tensors.logits.sizes;
  if (sizes.size() != 2) {
    return reject(kAclnnTiling, op, "logits",
                  "must have shape [batch, vocab_size]" + got(tensors.logits));
  }
  if (sizes[1] < 1 || sizes[1] > kMaximumVocabSize) {
    return reject(kAclnnTiling, op, "logits",
                  "must have a vocab_size in [1, 1048576]" + got(tensors.logits));
  }
  if (sizes[0] >= (kMaximumLogits + sizes[1] - 1) / sizes[1]) {
    return reject(kAclnnTiling, op, "logits",
                  "must have fewer than 2^32 elements" + got(tensors.logits));
  }
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

template <typename Element>
struct Matrix {
  Element* data;
  std::vector<int64_t> strides;

  StridedRow<Element> row(int64_t index) const {
    if (data == nullptr) return {};
    return {data + index * strides[0], strides[1]};
  }
};

template <typename Element>
Matrix<Element> matrix(const Operand& operand, bool wanted) {
  if (!wanted) return {nullptr, {}};
  return {reinterpret_cast<Element*>(operand.resolve()), operand.strides};
}

void sample_rows(Launch& launch, double eps, bool need_logits, int64_t top_k_guess) {
  const Operand& logits = launch.input(0);
  const int64_t batch = logits.sizes[0];
  const int64_t vocab_size = logits.sizes[1];
  if (batch == 0) return;
  const auto logits_rows = matrix<const uint16_t>(logits, true);
  const auto q_rows = matrix<const float>(launch.input(3), launch.input(3).defined());
  const auto selected_rows = matrix<float>(launch.output(1), need_logits);
  const auto* top_k = reinterpret_cast<const int32_t*>(launch.input(1).resolve());
  const auto* top_p = reinterpret_cast<const uint16_t*>(launch.input(2).resolve());
  auto* selected_index = reinterpret_cast<int64_t*>(launch.output(0).resolve());

  RowSampler sampler;
  for (int64_t row = 0; row < batch; ++row) {
    SampleArguments arguments;
    arguments.logits = logits_rows.row(row);
    arguments.logits_type = logits.data_type;
    arguments.vocab_size = vocab_size;
    arguments.top_k = top_k[row * launch.input(1).strides[0]];
    arguments.top_p = decode_half(top_p[row * launch.input(2).strides[0]], logits.data_type);
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
  if (!is_supported_soc(hostcann::soc_name())) {
    return reject(hostcann::kAclnnUnsupportedSoc, __func__, "has no kernel for SoC",
                  std::string(hostcann::soc_name()) + "; it runs on Ascend910B* and Ascend910_93*");
  }
  if (int status = check_shapes(__func__, tensors)) return status;

  const auto workspace_bytes =
      static_cast<uint64_t>(tensors.logits.numel()) * hostcann::opapi::kScratchBytesPerLogit;
  return make_executor(
      __func__,
      {{"logits", logits}, {"topK", top_k}, {"topP", top_p}, {"qOptional", q_optional, true}},
      {{"logitsSelectIdxOut", logits_select_idx_out},
       {"logitsTopKpSelectOut", logits_top_kp_select_out}},
      workspace_bytes,
      [eps, is_need_logits, top_k_guess](Launch& launch) {
        try {
          sample_rows(launch, eps, is_need_logits, top_k_guess);
        } catch (const ScratchChanged& error) {
          report_violation(hostcann::Violation::kWorkspaceOverrun,
                           std::string("aclnnTopKTopPSample: ") + error.what());
          throw;
        }
      },
      workspace_size, executor);
}
