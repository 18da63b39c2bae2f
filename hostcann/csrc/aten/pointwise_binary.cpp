// Operators of two tensors, or a tensor and a number, element by element, broadcast as torch does.
#include "aten/operator.h"

// aclnnX(self, other, out), both tensors / with a number
#define TENSOR_TENSOR(name, function) \
  OPERATOR(aclnn##name, (Input self, Input other, Output out), out = at::function(self, other))
#define TENSOR_NUMBER(name, function) \
  OPERATOR(aclnn##name, (Input self, Number other, Output out), out = at::function(self, other))
#define TENSOR_OR_NUMBER(tensor_name, number_name, function) \
  TENSOR_TENSOR(tensor_name, function)                       \
  TENSOR_NUMBER(number_name, function)
// The same, and aclnnInplaceX(selfRef, other)
#define BOTH_TENSOR_TENSOR(name, function) \
  IN_BOTH_FORMS(name, at::function(self, other), Input other)
#define BOTH_TENSOR_OR_NUMBER(tensor_name, number_name, function) \
  BOTH_TENSOR_TENSOR(tensor_name, function)                       \
  IN_BOTH_FORMS(number_name, at::function(self, other), Number other)

// ---- arithmetic; integers wrap, as ATen's do ----

IN_BOTH_FORMS(Add, at::add(self, other, alpha), Input other, Number alpha)
IN_BOTH_FORMS(Adds, at::add(self, other, alpha), Number other, Number alpha)
OPERATOR(aclnnAddV3, (Number self, Input other, Number alpha, Output out),
         out = at::add(at::mul(other, alpha), self))
IN_BOTH_FORMS(Sub, at::sub(self, other, alpha), Input other, Number alpha)
IN_BOTH_FORMS(Subs, at::sub(self, other, alpha), Number other, Number alpha)
OPERATOR(aclnnRsub, (Input self, Input other, Number alpha, Output out),
         out = at::rsub(self, other, alpha))
OPERATOR(aclnnRsubs, (Input self, Number other, Number alpha, Output out),
         out = at::rsub(self, other, alpha))
BOTH_TENSOR_OR_NUMBER(Mul, Muls, mul)
BOTH_TENSOR_OR_NUMBER(Div, Divs, div)

namespace hostcann::aten {
// CANN's mode: 0 is true division, 1 truncates, 2 takes the floor.
static std::optional<std::string_view> rounding(int mode) {
  if (mode == 1) return "trunc";
  if (mode == 2) return "floor";
  return std::nullopt;
}
}  // namespace hostcann::aten

IN_BOTH_FORMS(DivMod, at::div(self, other, rounding(mode)), Input other, int mode)
IN_BOTH_FORMS(DivMods, at::div(self, other, rounding(mode)), Number other, int mode)
BOTH_TENSOR_OR_NUMBER(FloorDivide, FloorDivides, floor_divide)
BOTH_TENSOR_OR_NUMBER(FmodTensor, FmodScalar, fmod)
BOTH_TENSOR_OR_NUMBER(RemainderTensorTensor, RemainderTensorScalar, remainder)
OPERATOR(aclnnRemainderScalarTensor, (Number self, Input other, Output out),
         out = at::remainder(self, other))
BOTH_TENSOR_OR_NUMBER(PowTensorTensor, PowTensorScalar, pow)
OPERATOR(aclnnPowScalarTensor, (Number self, Input exponent, Output out),
         out = at::pow(self, exponent))
TENSOR_TENSOR(Maximum, maximum)
TENSOR_TENSOR(Minimum, minimum)
BOTH_TENSOR_TENSOR(Atan2, atan2)
TENSOR_TENSOR(LogAddExp, logaddexp)
TENSOR_TENSOR(XLogYTensor, xlogy)
TENSOR_TENSOR(Gcd, gcd)
OPERATOR(aclnnClampTensor, (Input self, OptionalInput min, OptionalInput max, Output out),
         out = at::clamp(self, min, max))
BOTH_TENSOR_TENSOR(ClampMinTensor, clamp_min)
BOTH_TENSOR_TENSOR(ClampMaxTensor, clamp_max)
IN_BOTH_FORMS(Addcmul, at::addcmul(self, tensor1, tensor2, value), Input tensor1, Input tensor2,
              Number value)
IN_BOTH_FORMS(Addcdiv, at::addcdiv(self, tensor1, tensor2, value), Input tensor1, Input tensor2,
              Number value)
IN_BOTH_FORMS(Lerp, at::lerp(self, end, weight), Input end, Input weight)
IN_BOTH_FORMS(Lerps, at::lerp(self, end, weight), Input end, Number weight)

// ---- bits ----

BOTH_TENSOR_OR_NUMBER(BitwiseAndTensor, BitwiseAndScalar, bitwise_and)
TENSOR_OR_NUMBER(BitwiseOrTensor, BitwiseOrScalar, bitwise_or)
BOTH_TENSOR_OR_NUMBER(BitwiseXorTensor, BitwiseXorScalar, bitwise_xor)
TENSOR_OR_NUMBER(LeftShift, LeftShifts, bitwise_left_shift)
TENSOR_TENSOR(RightShift, bitwise_right_shift)

// ---- comparisons and logic ----

BOTH_TENSOR_OR_NUMBER(EqTensor, EqScalar, eq)
BOTH_TENSOR_OR_NUMBER(NeTensor, NeScalar, ne)
BOTH_TENSOR_OR_NUMBER(LtTensor, LtScalar, lt)
BOTH_TENSOR_OR_NUMBER(LeTensor, LeScalar, le)
BOTH_TENSOR_OR_NUMBER(GtTensor, GtScalar, gt)
BOTH_TENSOR_OR_NUMBER(GeTensor, GeScalar, ge)
BOTH_TENSOR_TENSOR(LogicalAnd, logical_and)
BOTH_TENSOR_TENSOR(LogicalOr, logical_or)
TENSOR_TENSOR(LogicalXor, logical_xor)
OPERATOR(aclnnIsClose,
         (Input self, Input other, double rtol, double atol, bool equal_nan, Output out),
         out = at::isclose(self, other, rtol, atol, equal_nan))
// One bool; out is a tensor of one element, of rank 0 or 1.
OPERATOR(aclnnEqual, (Input self, Input other, Output out),
         out.tensor().fill_(at::equal(self, other)))
OPERATOR(aclnnIsInScalarTensor,
         (Number element, Input testElements, bool assumeUnique, bool invert, Output out),
         out = at::isin(element, testElements, assumeUnique, invert))
OPERATOR(aclnnIsInTensorScalar,
         (Input elements, Number testElement, bool assumeUnique, bool invert, Output out),
         out = at::isin(elements, testElement, assumeUnique, invert))
OPERATOR(aclnnXLogYScalarOther, (Input self, Number other, Output out),
         out = at::xlogy(self, other))
OPERATOR(aclnnXLogYScalarSelf, (Number self, Input other, Output out), out = at::xlogy(self, other))
