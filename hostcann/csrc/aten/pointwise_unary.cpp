// Operators of one tensor and numbers, element by element.
#include "aten/operator.h"

// aclnnX(self, out)
#define UNARY(name, function) \
  OPERATOR(aclnn##name, (Input self, Output out), out = at::function(self))
#define UNARY_BOTH(name, function) IN_BOTH_FORMS(name, at::function(self))

UNARY(Abs, abs)
UNARY_BOTH(Acos, acos)
UNARY_BOTH(Acosh, acosh)
UNARY_BOTH(Asin, asin)
UNARY_BOTH(Asinh, asinh)
UNARY_BOTH(Atan, atan)
UNARY_BOTH(Atanh, atanh)
UNARY(BitwiseNot, bitwise_not)
UNARY_BOTH(Ceil, ceil)
UNARY_BOTH(Cos, cos)
UNARY_BOTH(Cosh, cosh)
UNARY_BOTH(Erf, erf)
UNARY_BOTH(Erfc, erfc)
UNARY_BOTH(Erfinv, erfinv)
UNARY_BOTH(Exp, exp)
UNARY_BOTH(Exp2, exp2)
UNARY_BOTH(Expm1, expm1)
UNARY_BOTH(Floor, floor)
UNARY_BOTH(Frac, frac)
UNARY(IsFinite, isfinite)
UNARY(IsNegInf, isneginf)
UNARY(IsPosInf, isposinf)
UNARY_BOTH(Log, log)
UNARY_BOTH(Log10, log10)
UNARY_BOTH(Log1p, log1p)
UNARY_BOTH(Log2, log2)
UNARY_BOTH(LogicalNot, logical_not)
UNARY_BOTH(Mish, mish)
UNARY(Neg, neg)
UNARY_BOTH(Reciprocal, reciprocal)
UNARY_BOTH(Relu, relu)
UNARY(Round, round)
UNARY_BOTH(Rsqrt, rsqrt)
UNARY_BOTH(Sigmoid, sigmoid)
UNARY(Sign, sign)
UNARY(Signbit, signbit)
UNARY(Silu, silu)
UNARY_BOTH(Sin, sin)
UNARY_BOTH(Sinc, sinc)
UNARY_BOTH(Sinh, sinh)
UNARY_BOTH(Sqrt, sqrt)
UNARY_BOTH(Tan, tan)
UNARY_BOTH(Tanh, tanh)
UNARY(Trunc, trunc)

// ---- activations ----

OPERATOR(aclnnGelu, (Input self, Output out), out = at::gelu(self))
OPERATOR(aclnnGeluV2, (Input self, int64_t approximate, Output out),
         out = at::gelu(self, approximate == 0 ? "none" : "tanh"))
OPERATOR(aclnnFastGelu, (Input self, Output out), out = self * at::sigmoid(self * 1.702))
OPERATOR(aclnnSwiGlu, (Input x, int64_t dim, Output out), const auto halves = x.chunk(2, dim);
         out = at::silu(halves.at(0)) * halves.at(1))
UNARY(LogSigmoid, log_sigmoid)
OPERATOR(aclnnLogSigmoidForward, (Input self, Output out, Output buffer),
         out = at::log_sigmoid(self);
         // torch_npu gives an empty buffer: the backward pass there computes it anew.
         if (buffer.tensor().numel() > 0) buffer = at::exp(-at::abs(self)))
UNARY_BOTH(Hardswish, hardswish)
UNARY_BOTH(Hardsigmoid, hardsigmoid)
IN_BOTH_FORMS(Hardtanh, at::hardtanh(self, minimum, maximum), Number minimum, Number maximum)
IN_BOTH_FORMS(Elu, at::elu(self, alpha, scale, inputScale), Number alpha, Number scale,
              Number inputScale)
IN_BOTH_FORMS(LeakyRelu, at::leaky_relu(self, negativeSlope), Number negativeSlope)
OPERATOR(aclnnSoftplus, (Input self, Number beta, Number threshold, Output out),
         out = at::softplus(self, beta, threshold))
IN_BOTH_FORMS(Threshold, at::threshold(self, threshold, value), Number threshold, Number value)

// ---- with numbers ----

OPERATOR(aclnnClamp, (Input self, OptionalNumber min, OptionalNumber max, Output out),
         out = at::clamp(self, min, max))
OPERATOR(aclnnClampMin, (Input self, Number min, Output out), out = at::clamp_min(self, min))
IN_BOTH_FORMS(ClampMax, at::clamp_max(self, max), Number max)
IN_BOTH_FORMS(NanToNum, at::nan_to_num(self, nan, posinf, neginf), float nan, float posinf,
              float neginf)
IN_BOTH_FORMS(RoundDecimals, at::round(self, decimals), int64_t decimals)
