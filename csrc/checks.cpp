#include "checks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_native.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <sstream>

#include "operators.h"

namespace ascend_sample {
namespace {

constexpr Shape kList{1, "[batch]", "Give one value a row."};

void check_rank(const char* op, const at::Tensor& tensor, const char* name, const Shape& shape) {
  TORCH_CHECK_VALUE(tensor.dim() == shape.dimensions, op, ": ", name, " must have shape ",
                    shape.text, ", got ", tensor.dim(), " dimensions: ", describe(tensor), ". ",
                    shape.remedy);
}

void check_device(const char* op, const at::Tensor& tensor, const char* name,
                  const at::Tensor& model, const char* model_name = "logits") {
  TORCH_CHECK_VALUE(tensor.device() == model.device(), op, ": ", name, " must be on the device of ",
                    model_name, " (", model.device(), "), got ", tensor.device(), ". Call ", name,
                    ".to(", model_name, ".device).");
}

/// The rules for k, p and min_p beside their dtype.
void check_per_row_of_logits(const char* op, const at::Tensor& tensor, const char* name,
                             const at::Tensor& logits) {
  check_rank(op, tensor, name, kList);
  TORCH_CHECK_VALUE(expect(tensor.sym_size(0).sym_eq(logits.sym_size(0))), op, ": ", name,
                    " must have one value for each row of logits (", logits.sym_size(0), "), got ",
                    tensor.sym_size(0), ". Expand it to the batch size.");
  check_device(op, tensor, name, logits);
}

void check_in_dtype_of_logits(const char* op, const at::Tensor& tensor, const char* name,
                              const at::Tensor& logits) {
  check_layout(op, tensor, name);
  TORCH_CHECK_TYPE(tensor.scalar_type() == logits.scalar_type(), op, ": ", name,
                   " must have the dtype of logits (", logits.scalar_type(), "), got ",
                   tensor.scalar_type(), ". Call ascend_sample.", op,
                   ", which converts and never rounds a ", name, " < 1 up to 1.");
  check_per_row_of_logits(op, tensor, name, logits);
}

void check_k(const char* op, const at::Tensor& k, const at::Tensor& logits) {
  check_layout(op, k, "k");
  TORCH_CHECK_TYPE(k.scalar_type() == at::kInt, op, ": k must be int32, got ", k.scalar_type(),
                   ". Call ascend_sample.", op, ", which converts, or k.to(torch.int32).");
  check_per_row_of_logits(op, k, "k", logits);
}

void check_q(const char* op, const at::Tensor& q, const at::Tensor& logits) {
  check_layout(op, q, "q");
  TORCH_CHECK_TYPE(q.scalar_type() == at::kFloat, op, ": q must be float32, got ", q.scalar_type(),
                   ". Draw it with torch.empty_like(logits, dtype=torch.float32).exponential_().");
  check_rank(op, q, "q", {2, "[batch, vocab_size]", "It has the shape of logits."});
  TORCH_CHECK_VALUE(expect(q.sym_size(0).sym_eq(logits.sym_size(0))) &&
                        expect(q.sym_size(1).sym_eq(logits.sym_size(1))),
                    op, ": q must have the shape of logits ", logits.sym_sizes(), ", got ",
                    q.sym_sizes(),
                    ". Draw it with torch.empty_like(logits, dtype=torch.float32).exponential_().");
  check_device(op, q, "q", logits);
}

/// What both operators that draw take, in the order in which it is checked.
template <typename Arguments>
void check_common(const Arguments& arguments) {
  constexpr const char* kOperator = Arguments::kName;
  const auto& logits = arguments.logits;
  check_logits(kOperator, logits);
  check_k(kOperator, arguments.k, logits);
  check_in_dtype_of_logits(kOperator, arguments.p, "p", logits);
  if (arguments.q.has_value()) {
    check_q(kOperator, *arguments.q, logits);
  }
  TORCH_CHECK_VALUE(std::isfinite(arguments.eps) && arguments.eps >= 0, kOperator,
                    ": eps must be finite and >= 0, got ", arguments.eps,
                    ". Use the default, 1e-8.");
  TORCH_CHECK_VALUE(arguments.top_k_guess >= 1, kOperator, ": top_k_guess must be >= 1, got ",
                    arguments.top_k_guess, ". It is a hint for speed: use the default, 32.");
}

/// [B, V], or [0] for an output that is not wanted.
at::Tensor allocate_by_logits(const at::Tensor& logits, c10::ScalarType dtype, bool is_wanted) {
  return is_wanted ? allocate(logits.sym_sizes(), dtype, logits) : allocate({0}, dtype, logits);
}

at::Tensor allocate_ids(const at::Tensor& logits) {
  return allocate({logits.sym_size(0)}, at::kLong, logits);
}

}  // namespace

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sym_sizes() << ' ' << tensor.scalar_type() << " on " << tensor.device();
  return text.str();
}

at::Tensor allocate(c10::SymIntArrayRef shape, c10::ScalarType dtype, const at::Tensor& model) {
  if (model.is_cpu()) {  // a kernel's, not a fake one's: what at::empty_symint would come to
    return at::native::empty_cpu(C10_AS_INTARRAYREF_SLOW(shape), dtype);
  }
  const auto options = model.options().requires_grad(false).layout(c10::kStrided);
  return at::empty_symint(shape, options.dtype(dtype));
}

void check_logits(const char* op, const at::Tensor& logits) {
  check_layout(op, logits, "logits");
  const auto dtype = logits.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, op,
                   ": logits must be float32, float16 or bfloat16, got ", dtype,
                   ". Convert with logits.to(torch.bfloat16) or .float().");
  check_rank(
      op, logits, "logits",
      {2, "[batch, vocab_size]", "Flatten the leading dimensions, or add one with logits[None]."});
  const auto vocab_size = logits.sym_size(1);
  TORCH_CHECK_VALUE(expect(vocab_size.sym_gt(0)), op,
                    ": logits must have at least one column, got vocab_size 0. There is nothing "
                    "to sample from.");
  TORCH_CHECK_VALUE(expect(vocab_size.sym_le(kMaxVocabSize)), op, ": logits must have at most ",
                    kMaxVocabSize, " columns, got vocab_size ", vocab_size,
                    ". Split the vocabulary, or drop padding columns.");
}

void check_layout(const char* op, const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_TYPE(tensor.defined(), op, ": ", name,
                   " must be a torch.Tensor, got None. Call ascend_sample.", op,
                   ", where None skips a filter.");
  // Before the layout: that of a nested tensor may be strided, and its sizes cannot be asked for.
  TORCH_CHECK_TYPE(!tensor.is_nested(), op, ": ", name,
                   " must be a dense strided tensor, got a nested one. Pad its rows with "
                   ".to_padded_tensor(padding) first.");
  TORCH_CHECK_TYPE(!tensor.is_quantized(), op, ": ", name,
                   " must be a dense strided tensor, got a quantized one of ", tensor.scalar_type(),
                   ". Call .dequantize() first.");
  TORCH_CHECK_TYPE(tensor.layout() == c10::kStrided, op, ": ", name,
                   " must be a dense strided tensor, got layout ", tensor.layout(),
                   ". Call .to_dense() first.");
}

void check_kind(const char* op, const at::Tensor& tensor, const char* name, c10::ScalarType dtype,
                const Shape& shape, const at::Tensor& model, const char* model_name) {
  check_layout(op, tensor, name);
  TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, op, ": ", name, " must be ", dtype, ", got ",
                   tensor.scalar_type(), ". Convert it with ", name, ".to().");
  check_rank(op, tensor, name, shape);
  check_device(op, tensor, name, model, model_name);
}

void check_list(const char* op, const at::Tensor& tensor, const char* name, c10::ScalarType dtype,
                const at::Tensor& model, const char* model_name) {
  check_kind(op, tensor, name, dtype, kList, model, model_name);
}

void check_per_row(const char* op, const at::Tensor& tensor, const char* name,
                   c10::ScalarType dtype, const c10::SymInt& rows, const at::Tensor& model,
                   const char* model_name) {
  check_list(op, tensor, name, dtype, model, model_name);
  TORCH_CHECK_VALUE(expect(tensor.sym_size(0).sym_eq(rows)), op, ": ", name,
                    " must have one value for each row (", rows, "), got ", tensor.sym_size(0),
                    ". Expand it to the number of rows.");
}

void check_purpose(const char* op, int64_t purpose, const char* name) {
  constexpr int64_t kPurposes = int64_t{1} << 32;
  TORCH_CHECK_VALUE(purpose >= 0 && purpose < kPurposes, op, ": ", name,
                    " must be between 0 and 2^32 - 1, got ", purpose,
                    ". Use a member of ascend_sample.sampling.draws.noise.Purpose.");
}

c10::SymInt count_rows(const char* op, const at::Tensor& logits,
                       const std::optional<at::Tensor>& rows, const char* name) {
  if (!rows.has_value()) {
    return logits.sym_size(0);
  }
  check_list(op, *rows, name, at::kLong, logits);
  return rows->sym_size(0);
}

void check_count(const char* op, int64_t count, const at::Tensor& logits, const char* name) {
  TORCH_CHECK_VALUE(expect(logits.sym_size(1).sym_ge(count)), op, ": ", name,
                    " must be at most the vocabulary size of logits (", logits.sym_size(1),
                    "), got ", count, ". Ask for fewer.");
}

void SampleArguments::check() const { check_common(*this); }

void SampleV2Arguments::check() const {
  check_common(*this);
  if (min_p.has_value()) {
    check_in_dtype_of_logits(kName, *min_p, "min_p", logits);
  }
  TORCH_CHECK_VALUE(ks_max >= 1 && ks_max <= kMaxKsMax, kName, ": ks_max must be between 1 and ",
                    kMaxKsMax, ", got ", ks_max,
                    ". It bounds the k that is honoured: use the default, 1024.");
  TORCH_CHECK_VALUE(!(is_need_sample_result && q.has_value()), kName,
                    ": q must be None when is_need_sample_result is True, got a tensor. Draw from "
                    "logits_sort_masked yourself, or leave is_need_sample_result out.");
}

void ApplyArguments::check() const {
  check_logits(kName, logits);
  TORCH_CHECK_VALUE(k.has_value() || p.has_value(), kName,
                    ": k must be given where p is None, got None. Give one of them: without a "
                    "filter the logits are the result.");
  if (k.has_value()) {
    check_k(kName, *k, logits);
  }
  if (p.has_value()) {
    check_in_dtype_of_logits(kName, *p, "p", logits);
  }
}

SampleArguments::Results SampleArguments::allocate_outputs() const {
  return {allocate_ids(logits), allocate_by_logits(logits, at::kFloat, is_need_logits)};
}

SampleV2Arguments::Results SampleV2Arguments::allocate_outputs() const {
  return {allocate_ids(logits), allocate_by_logits(logits, at::kFloat, is_need_logits),
          allocate_by_logits(logits, at::kLong, is_need_sample_result),
          allocate_by_logits(logits, at::kFloat, is_need_sample_result)};
}

ApplyArguments::Results ApplyArguments::allocate_outputs() const {
  return {allocate_by_logits(logits, logits.scalar_type(), /*is_wanted=*/true)};
}

}  // namespace ascend_sample
