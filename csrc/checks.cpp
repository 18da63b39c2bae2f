#include "checks.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <sstream>

namespace ascend_sample {
namespace {

using c10::ScalarType;

bool expect(const c10::SymBool& condition) { return condition.expect_true(__FILE__, __LINE__); }

void check_rank(const at::Tensor& tensor, const char* name, int64_t rank, const char* shape,
                const char* remedy) {
  TORCH_CHECK_VALUE(tensor.dim() == rank, kOperatorName, ": ", name, " must have shape ", shape,
                    ", got ", tensor.dim(), " dimensions: ", describe(tensor), ". ", remedy);
}

void check_layout(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_TYPE(tensor.defined(), kOperatorName, ": ", name,
                   " must be a torch.Tensor, got None. Call ascend_sample.top_k_top_p_sample, "
                   "where None skips a filter.");
  TORCH_CHECK_TYPE(tensor.layout() == c10::kStrided && !tensor.is_quantized(), kOperatorName, ": ",
                   name, " must be a dense strided tensor, got layout ", tensor.layout(),
                   ". Call .to_dense() or .dequantize() first.");
}

void check_device(const at::Tensor& tensor, const char* name, const at::Tensor& logits) {
  TORCH_CHECK_VALUE(tensor.device() == logits.device(), kOperatorName, ": ", name,
                    " must be on the device of logits (", logits.device(), "), got ",
                    tensor.device(), ". Call ", name, ".to(logits.device).");
}

void check_per_row(const at::Tensor& tensor, const char* name, const at::Tensor& logits) {
  check_rank(tensor, name, 1, "[batch]", "Give one value a row.");
  TORCH_CHECK_VALUE(expect(tensor.sym_size(0).sym_eq(logits.sym_size(0))), kOperatorName, ": ",
                    name, " must have one value for each row of logits (", logits.sym_size(0),
                    "), got ", tensor.sym_size(0), ". Expand it to the batch size.");
}

void check_logits(const at::Tensor& logits) {
  check_layout(logits, "logits");
  const auto dtype = logits.scalar_type();
  TORCH_CHECK_TYPE(
      dtype == ScalarType::Float || dtype == ScalarType::Half || dtype == ScalarType::BFloat16,
      kOperatorName, ": logits must be float32, float16 or bfloat16, got ", dtype,
      ". Convert with logits.to(torch.bfloat16) or .float().");
  check_rank(logits, "logits", 2, "[batch, vocab_size]",
             "Flatten the leading dimensions, or add one with logits[None].");
  const auto vocab_size = logits.sym_size(1);
  TORCH_CHECK_VALUE(
      expect(vocab_size.sym_gt(0)), kOperatorName,
      ": logits must have at least one column, got vocab_size 0. There is nothing to sample from.");
  TORCH_CHECK_VALUE(expect(vocab_size.sym_le(kMaxVocabSize)), kOperatorName,
                    ": logits must have at most ", kMaxVocabSize, " columns, got vocab_size ",
                    vocab_size, ". Split the vocabulary, or drop padding columns.");
}

}  // namespace

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sym_sizes() << ' ' << tensor.scalar_type() << " on " << tensor.device();
  return text.str();
}

void check_arguments(const SampleArguments& arguments) {
  const auto& [logits, k, p, q, eps, is_need_logits, top_k_guess] = arguments;
  check_logits(logits);

  check_layout(k, "k");
  TORCH_CHECK_TYPE(
      k.scalar_type() == ScalarType::Int, kOperatorName, ": k must be int32, got ", k.scalar_type(),
      ". Call ascend_sample.top_k_top_p_sample, which converts, or k.to(torch.int32).");
  check_per_row(k, "k", logits);
  check_device(k, "k", logits);

  check_layout(p, "p");
  TORCH_CHECK_TYPE(
      p.scalar_type() == logits.scalar_type(), kOperatorName, ": p must have the dtype of logits (",
      logits.scalar_type(), "), got ", p.scalar_type(),
      ". Call ascend_sample.top_k_top_p_sample, which converts and never rounds a p < 1 up to 1.");
  check_per_row(p, "p", logits);
  check_device(p, "p", logits);

  if (q.has_value()) {
    check_layout(*q, "q");
    TORCH_CHECK_TYPE(
        q->scalar_type() == ScalarType::Float, kOperatorName, ": q must be float32, got ",
        q->scalar_type(),
        ". Draw it with torch.empty_like(logits, dtype=torch.float32).exponential_().");
    check_rank(*q, "q", 2, "[batch, vocab_size]", "It has the shape of logits.");
    TORCH_CHECK_VALUE(
        expect(q->sym_size(0).sym_eq(logits.sym_size(0))) &&
            expect(q->sym_size(1).sym_eq(logits.sym_size(1))),
        kOperatorName, ": q must have the shape of logits ", logits.sym_sizes(), ", got ",
        q->sym_sizes(),
        ". Draw it with torch.empty_like(logits, dtype=torch.float32).exponential_().");
    check_device(*q, "q", logits);
  }
  TORCH_CHECK_VALUE(std::isfinite(eps) && eps >= 0, kOperatorName,
                    ": eps must be finite and >= 0, got ", eps, ". Use the default, 1e-8.");
  TORCH_CHECK_VALUE(top_k_guess >= 1, kOperatorName, ": top_k_guess must be >= 1, got ",
                    top_k_guess, ". It is a hint for speed: use the default, 32.");
}

std::tuple<at::Tensor, at::Tensor> allocate_outputs(const SampleArguments& arguments) {
  const auto& logits = arguments.logits;
  const auto options = logits.options().requires_grad(false).layout(c10::kStrided);
  const c10::SymDimVector kept_shape =
      arguments.is_need_logits ? c10::SymDimVector{logits.sym_size(0), logits.sym_size(1)}
                               : c10::SymDimVector{c10::SymInt(0)};
  return {
      at::empty_symint({logits.sym_size(0)}, options.dtype(c10::kLong)),
      at::empty_symint(kept_shape, options.dtype(c10::kFloat)),
  };
}

}  // namespace ascend_sample
