// Reductions, scans, softmax and the norms.
#include "aten/operator.h"

namespace hostcann::aten {

// CANN, like torch_npu, writes "every dimension" as an empty list; some ATen reductions read that
// as "none".
static std::vector<int64_t> dims_of(const at::Tensor& self, Integers dims) {
  if (!dims.empty()) return dims;
  std::vector<int64_t> all(self.dim());
  for (int64_t i = 0; i < self.dim(); ++i) all[i] = i;
  return all;
}

// x / sqrt(mean(x^2) + epsilon) * gamma over gamma's dimensions, in float32 at least.
static void rms_norm(Input x, Input gamma, double epsilon, const Output& y,
                     const OptionalOutput& rstd) {
  std::vector<int64_t> dims(gamma.dim());
  for (int64_t i = 0; i < gamma.dim(); ++i) dims[i] = i - gamma.dim();
  const at::Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  const at::Tensor inverse = at::rsqrt(at::mean(wide * wide, dims, /*keepdim=*/true) + epsilon);
  rstd = inverse;
  y = wide * inverse * gamma;
}

// torch_npu gives the mean and rstd of an empty input the sizes [0]: nothing is written to them.
static void layer_norm(Input input, Integers shape, OptionalInput weight, OptionalInput bias,
                       double eps, const Output& out, const OptionalOutput& mean,
                       const OptionalOutput& rstd) {
  if (input.numel() > 0) {
    std::tie(out, mean, rstd) = at::native_layer_norm(input, shape, weight, bias, eps);
  }
}

}  // namespace hostcann::aten

// ---- reductions ----

OPERATOR(aclnnReduceSum, (Input self, Integers dims, bool keepDims, DataType dtype, Output out),
         out = at::sum(self, dims_of(self, dims), keepDims, dtype))
OPERATOR(aclnnReduceNansum, (Input self, Integers dim, bool keepDim, DataType dtype, Output out),
         out = at::nansum(self, dims_of(self, dim), keepDim, dtype))
OPERATOR(aclnnMean, (Input self, Integers dim, bool keepDim, DataType dtype, Output out),
         out = at::mean(self, dims_of(self, dim), keepDim, dtype))
OPERATOR(aclnnAll, (Input self, Integers dim, bool keepdim, Output out),
         out = at::all(self, dims_of(self, dim), keepdim))
OPERATOR(aclnnAny, (Input self, Integers dim, bool keepdim, Output out),
         out = at::any(self, dims_of(self, dim), keepdim))
OPERATOR(aclnnAmax, (Input self, Integers dim, bool keepDim, Output out),
         out = at::amax(self, dim, keepDim))
OPERATOR(aclnnAmin, (Input self, Integers dim, bool keepDim, Output out),
         out = at::amin(self, dim, keepDim))
OPERATOR(aclnnAminmax, (Input self, Integers dim, bool keepDim, Output minOut, Output maxOut),
         minOut = at::amin(self, dim, keepDim);
         maxOut = at::amax(self, dim, keepDim))
OPERATOR(aclnnMax, (Input self, Output out), out = at::max(self))
OPERATOR(aclnnMin, (Input self, Output out), out = at::min(self))
OPERATOR(aclnnMaxDim, (Input self, int64_t dim, bool keepdim, Output out, Output indices),
         std::tie(out, indices) = at::max(self, dim, keepdim))
OPERATOR(aclnnMinDim, (Input self, int64_t dim, bool keepdim, Output out, Output indices),
         std::tie(out, indices) = at::min(self, dim, keepdim))
OPERATOR(aclnnArgMax, (Input self, int64_t dim, bool keepdim, Output out),
         out = at::argmax(self, dim, keepdim))
OPERATOR(aclnnArgMin, (Input self, int64_t dim, bool keepdim, Output out),
         out = at::argmin(self, dim, keepdim))
OPERATOR(aclnnProd, (Input self, DataType dtype, Output out), out = at::prod(self, dtype))
OPERATOR(aclnnProdDim, (Input self, int64_t dim, bool keepDim, DataType dtype, Output out),
         out = at::prod(self, dim, keepDim, dtype))
OPERATOR(aclnnLogSumExp, (Input self, Integers dim, bool keepDim, Output out),
         out = at::logsumexp(self, dims_of(self, dim), keepDim))
OPERATOR(aclnnNorm, (Input self, Number p, Integers dim, bool keepdim, Output out),
         out = at::norm(self, p, dims_of(self, dim), keepdim))
OPERATOR(aclnnLinalgVectorNorm,
         (Input self, Number ord, Integers dims, bool keepDims, DataType dtype, Output out),
         out = at::linalg_vector_norm(self, ord, dims_of(self, dims), keepDims, dtype))
OPERATOR(aclnnVarCorrection,
         (Input self, Integers dim, int64_t correction, bool keepdim, Output out),
         out = at::var(self, dims_of(self, dim), correction, keepdim))
OPERATOR(aclnnStd, (Input self, Integers dim, int64_t correction, bool keepdim, Output out),
         out = at::std(self, dims_of(self, dim), correction, keepdim))
OPERATOR(aclnnVarMean,
         (Input self, Integers dim, int64_t correction, bool keepdim, Output varOut,
          Output meanOut),
         std::tie(varOut, meanOut) = at::var_mean(self, dims_of(self, dim), correction, keepdim))
OPERATOR(aclnnStdMeanCorrection,
         (Input self, Integers dim, int64_t correction, bool keepdim, Output stdOut,
          Output meanOut),
         std::tie(stdOut, meanOut) = at::std_mean(self, dims_of(self, dim), correction, keepdim))

// ---- scans ----

OPERATOR(aclnnCumsum, (Input self, int64_t dim, DataType dtype, Output out),
         out = at::cumsum(self, dim, dtype))
OPERATOR(aclnnCumprod, (Input self, Number dim, DataType dtype, Output out),
         out = at::cumprod(self, dim.toLong(), dtype))
OPERATOR(aclnnCummax, (Input self, int64_t dim, Output valuesOut, Output indicesOut),
         std::tie(valuesOut, indicesOut) = at::cummax(self, dim))
OPERATOR(aclnnCummin, (Input self, int64_t dim, Output valuesOut, Output indicesOut),
         std::tie(valuesOut, indicesOut) = at::cummin(self, dim))

// ---- softmax and normalisation ----

// The type of out is the type that is computed in: softmax(x, dtype=...) converts first.
OPERATOR(aclnnSoftmax, (Input self, int64_t dim, Output out),
         out = at::softmax(self, dim, out.type()))
OPERATOR(aclnnLogSoftmax, (Input self, int64_t dim, Output out),
         out = at::log_softmax(self, dim, out.type()))
OPERATOR(aclnnLayerNorm,
         (Input input, Integers normalizedShape, OptionalInput weight, OptionalInput bias,
          double eps, Output out, OptionalOutput mean, OptionalOutput rstd),
         layer_norm(input, normalizedShape, weight, bias, eps, out, mean, rstd))
OPERATOR(aclnnRmsNorm, (Input x, Input gamma, double epsilon, Output y, OptionalOutput rstd),
         rms_norm(x, gamma, epsilon, y, rstd))
