// Operators of one tensor and numbers, element by element.
#include "hostcann/aten/operator.h"

// aclnnX(self, out)
#define UNARY(name, function) \
  OPERATOR(aclnn##name, (Input self, Output out), out = at::function(self))
// aclnnInplaceX(selfRef)
#define UNARY_INPLACE(name, function) \
  OPERATOR(aclnnInplace##name, (Updated selfRef), selfRef = at::function(selfRef))
#define UNARY_BOTH(name, function) \
  UNARY(name, function)            \
  UNARY_INPLACE(name, function)

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
UNARY(LogSigmoid, log_sigmoid)
OPERATOR(aclnnLogSigmoidForward, (Input self, Output out, Output buffer),
         out = at::log_sigmoid(self);
         // torch_npu gives an empty buffer: the backward pass there computes it anew.
         if (buffer.tensor().numel() > 0) buffer = at::exp(-at::abs(self)))
UNARY_BOTH(Hardswish, hardswish)
UNARY_BOTH(Hardsigmoid, hardsigmoid)
OPERATOR(aclnnHardtanh, (Input self, Number minimum, Number maximum, Output out),
         out = at::hardtanh(self, minimum, maximum))
OPERATOR(aclnnInplaceHardtanh, (Updated selfRef, Number minimum, Number maximum),
         selfRef = at::hardtanh(selfRef, minimum, maximum))
OPERATOR(aclnnElu, (Input self, Number alpha, Number scale, Number inputScale, Output out),
         out = at::elu(self, alpha, scale, inputScale))
OPERATOR(aclnnInplaceElu, (Updated selfRef, Number alpha, Number scale, Number inputScale),
         selfRef = at::elu(selfRef, alpha, scale, inputScale))
OPERATOR(aclnnLeakyRelu, (Input self, Number negativeSlope, Output out),
         out = at::leaky_relu(self, negativeSlope))
OPERATOR(aclnnInplaceLeakyRelu, (Updated selfRef, Number negativeSlope),
         selfRef = at::leaky_relu(selfRef, negativeSlope))
OPERATOR(aclnnSoftplus, (Input self, Number beta, Number threshold, Output out),
         out = at::softplus(self, beta, threshold))
OPERATOR(aclnnThreshold, (Input self, Number threshold, Number value, Output out),
         out = at::threshold(self, threshold, value))
OPERATOR(aclnnInplaceThreshold, (Updated selfRef, Number threshold, Number value),
         selfRef = at::threshold(selfRef, threshold, value))

// ---- with numbers ----

OPERATOR(aclnnClamp, (Input self, OptionalNumber min, OptionalNumber max, Output out),
         out = at::clamp(self, min, max))
OPERATOR(aclnnClampMin, (Input self, Number min, Output out), out = at::clamp_min(self, min))
OPERATOR(aclnnClampMax, (Input self, Number max, Output out), out = at::clamp_max(self, max))
OPERATOR(aclnnInplaceClampMax, (Updated selfRef, Number max), selfRef = at::clamp_max(selfRef, max))
OPERATOR(aclnnNanToNum, (Input self, float nan, float posinf, float neginf, Output out),
         out = at::nan_to_num(self, nan, posinf, neginf))
OPERATOR(aclnnInplaceNanToNum, (Updated selfRef, float nan, float posinf, float neginf),
         selfRef = at::nan_to_num(selfRef, nan, posinf, neginf))
OPERATOR(aclnnRoundDecimals, (Input self, int64_t decimals, Output out),
         out = at::round(self, decimals))
OPERATOR(aclnnInplaceRoundDecimals, (Updated selfRef, int64_t decimals),
         selfRef = at::round(selfRef, decimals))
