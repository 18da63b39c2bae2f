#include "checks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_native.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <sstream>

namespace ascend_sample {
namespace {

using c10::ScalarType;

/// The rules of one operator, whose name each message begins with.
class ArgumentRules {
 public:
  explicit ArgumentRules(const char* op) : op_(op) {}

  /// What both operators take, in the order in which it is checked.
  template <typename Arguments>
  void check_common(const Arguments& arguments) const {
    const auto& logits = arguments.logits;
    check_logits(logits);
    check_k(arguments.k, logits);
    check_in_dtype_of_logits(arguments.p, "p", logits);
    if (arguments.q.has_value()) {
      check_q(*arguments.q, logits);
    }
    TORCH_CHECK_VALUE(std::isfinite(arguments.eps) && arguments.eps >= 0, op_,
                      ": eps must be finite and >= 0, got ", arguments.eps,
                      ". Use the default, 1e-8.");
    TORCH_CHECK_VALUE(arguments.top_k_guess >= 1, op_, ": top_k_guess must be >= 1, got ",
                      arguments.top_k_guess, ". It is a hint for speed: use the default, 32.");
  }

  void check_in_dtype_of_logits(const at::Tensor& tensor, const char* name,
                                const at::Tensor& logits) const {
    check_layout(tensor, name);
    TORCH_CHECK_TYPE(tensor.scalar_type() == logits.scalar_type(), op_, ": ", name,
                     " must have the dtype of logits (", logits.scalar_type(), "), got ",
                     tensor.scalar_type(), ". Call ascend_sample.", op_,
                     ", which converts and never rounds a ", name, " < 1 up to 1.");
    check_per_row(tensor, name, logits);
    check_device(tensor, name, logits);
  }

  void check_logits(const at::Tensor& logits) const {
    check_layout(logits, "logits");
    const auto dtype = logits.scalar_type();
    TORCH_CHECK_TYPE(
        dtype == ScalarType::Float || dtype == ScalarType::Half || dtype == ScalarType::BFloat16,
        op_, ": logits must be float32, float16 or bfloat16, got ", dtype,
        ". Convert with logits.to(torch.bfloat16) or .float().");
    check_rank(logits, "logits", 2, "[batch, vocab_size]",
               "Flatten the leading dimensions, or add one with logits[None].");
    const auto vocab_size = logits.sym_size(1);
    TORCH_CHECK_VALUE(expect(vocab_size.sym_gt(0)), op_,
                      ": logits must have at least one column, got vocab_size 0. There is nothing "
                      "to sample from.");
    TORCH_CHECK_VALUE(expect(vocab_size.sym_le(kMaxVocabSize)), op_, ": logits must have at most ",
                      kMaxVocabSize, " columns, got vocab_size ", vocab_size,
                      ". Split the vocabulary, or drop padding columns.");
  }

  void check_layout(const at::Tensor& tensor, const char* name) const {
    TORCH_CHECK_TYPE(tensor.defined(), op_, ": ", name,
                     " must be a torch.Tensor, got None. Call ascend_sample.", op_,
                     ", where None skips a filter.");
    // Before the layout: that of a nested tensor may be strided, and its sizes cannot be asked for.
    TORCH_CHECK_TYPE(!tensor.is_nested(), op_, ": ", name,
                     " must be a dense strided tensor, got a nested one. Pad its rows with "
                     ".to_padded_tensor(padding) first.");
    TORCH_CHECK_TYPE(!tensor.is_quantized(), op_, ": ", name,
                     " must be a dense strided tensor, got a quantized one of ",
                     tensor.scalar_type(), ". Call .dequantize() first.");
    TORCH_CHECK_TYPE(tensor.layout() == c10::kStrided, op_, ": ", name,
                     " must be a dense strided tensor, got layout ", tensor.layout(),
                     ". Call .to_dense() first.");
  }

 private:
  void check_k(const at::Tensor& k, const at::Tensor& logits) const {
    check_layout(k, "k");
    TORCH_CHECK_TYPE(k.scalar_type() == ScalarType::Int, op_, ": k must be int32, got ",
                     k.scalar_type(), ". Call ascend_sample.", op_,
                     ", which converts, or k.to(torch.int32).");
    check_per_row(k, "k", logits);
    check_device(k, "k", logits);
  }

  void check_q(const at::Tensor& q, const at::Tensor& logits) const {
    check_layout(q, "q");
    TORCH_CHECK_TYPE(
        q.scalar_type() == ScalarType::Float, op_, ": q must be float32, got ", q.scalar_type(),
        ". Draw it with torch.empty_like(logits, dtype=torch.float32).exponential_().");
    check_rank(q, "q", 2, "[batch, vocab_size]", "It has the shape of logits.");
    TORCH_CHECK_VALUE(
        expect(q.sym_size(0).sym_eq(logits.sym_size(0))) &&
            expect(q.sym_size(1).sym_eq(logits.sym_size(1))),
        op_, ": q must have the shape of logits ", logits.sym_sizes(), ", got ", q.sym_sizes(),
        ". Draw it with torch.empty_like(logits, dtype=torch.float32).exponential_().");
    check_device(q, "q", logits);
  }

  void check_rank(const at::Tensor& tensor, const char* name, int64_t rank, const char* shape,
                  const char* remedy) const {
    TORCH_CHECK_VALUE(tensor.dim() == rank, op_, ": ", name, " must have shape ", shape, ", got ",
                      tensor.dim(), " dimensions: ", describe(tensor), ". ", remedy);
  }

  void check_device(const at::Tensor& tensor, const char* name, const at::Tensor& logits) const {
    TORCH_CHECK_VALUE(tensor.device() == logits.device(), op_, ": ", name,
                      " must be on the device of logits (", logits.device(), "), got ",
                      tensor.device(), ". Call ", name, ".to(logits.device).");
  }

  void check_per_row(const at::Tensor& tensor, const char* name, const at::Tensor& logits) const {
    check_rank(tensor, name, 1, "[batch]", "Give one value a row.");
    TORCH_CHECK_VALUE(expect(tensor.sym_size(0).sym_eq(logits.sym_size(0))), op_, ": ", name,
                      " must have one value for each row of logits (", logits.sym_size(0),
                      "), got ", tensor.sym_size(0), ". Expand it to the batch size.");
  }

  const char* op_;
};

/// [B, V], or [0] for an output that is not wanted.
at::Tensor allocate_by_logits(const at::Tensor& logits, ScalarType dtype, bool is_wanted) {
  return is_wanted ? allocate(logits.sym_sizes(), dtype, logits) : allocate({0}, dtype, logits);
}

at::Tensor allocate_ids(const at::Tensor& logits) {
  return allocate({logits.sym_size(0)}, c10::kLong, logits);
}

}  // namespace

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sym_sizes() << ' ' << tensor.scalar_type() << " on " << tensor.device();
  return text.str();
}

at::Tensor allocate(c10::SymIntArrayRef shape, ScalarType dtype, const at::Tensor& model) {
  if (model.is_cpu()) {  // a kernel's, not a fake one's: what at::empty_symint would come to
    return at::native::empty_cpu(C10_AS_INTARRAYREF_SLOW(shape), dtype);
  }
  const auto options = model.options().requires_grad(false).layout(c10::kStrided);
  return at::empty_symint(shape, options.dtype(dtype));
}

void check_logits(const char* op, const at::Tensor& logits) {
  ArgumentRules(op).check_logits(logits);
}

void check_layout(const char* op, const at::Tensor& tensor, const char* name) {
  ArgumentRules(op).check_layout(tensor, name);
}

void SampleArguments::check() const { ArgumentRules(kName).check_common(*this); }

void SampleV2Arguments::check() const {
  const ArgumentRules rules(kName);
  rules.check_common(*this);
  if (min_p.has_value()) {
    rules.check_in_dtype_of_logits(*min_p, "min_p", logits);
  }
  TORCH_CHECK_VALUE(ks_max >= 1 && ks_max <= kMaxKsMax, kName, ": ks_max must be between 1 and ",
                    kMaxKsMax, ", got ", ks_max,
                    ". It bounds the k that is honoured: use the default, 1024.");
  TORCH_CHECK_VALUE(!(is_need_sample_result && q.has_value()), kName,
                    ": q must be None when is_need_sample_result is True, got a tensor. Draw from "
                    "logits_sort_masked yourself, or leave is_need_sample_result out.");
}

SampleArguments::Results SampleArguments::allocate_outputs() const {
  return {allocate_ids(logits), allocate_by_logits(logits, c10::kFloat, is_need_logits)};
}

SampleV2Arguments::Results SampleV2Arguments::allocate_outputs() const {
  return {allocate_ids(logits), allocate_by_logits(logits, c10::kFloat, is_need_logits),
          allocate_by_logits(logits, c10::kLong, is_need_sample_result),
          allocate_by_logits(logits, c10::kFloat, is_need_sample_result)};
}

}  // namespace ascend_sample
