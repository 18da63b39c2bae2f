// Operators of two tensors, or a tensor and a number, element by element, broadcast as torch does.
#include "hostcann/aten/operator.h"

// aclnnX(self, other, out), both tensors / with a number
#define TENSOR_TENSOR(name, function) \
  OPERATOR(aclnn##name, (Input self, Input other, Output out), out = at::function(self, other))
#define TENSOR_NUMBER(name, function) \
  OPERATOR(aclnn##name, (Input self, Number other, Output out), out = at::function(self, other))
// aclnnInplaceX(selfRef, other)
#define INPLACE_TENSOR(name, function)                         \
  OPERATOR(aclnnInplace##name, (Updated selfRef, Input other), \
           selfRef = at::function(selfRef.tensor(), other))
#define INPLACE_NUMBER(name, function)                          \
  OPERATOR(aclnnInplace##name, (Updated selfRef, Number other), \
           selfRef = at::function(selfRef.tensor(), other))

// ---- arithmetic; integers wrap, as ATen's do ----

OPERATOR(aclnnAdd, (Input self, Input other, Number alpha, Output out),
         out = at::add(self, other, alpha))
OPERATOR(aclnnAdds, (Input self, Number other, Number alpha, Output out),
         out = at::add(self, other, alpha))
OPERATOR(aclnnAddV3, (Number self, Input other, Number alpha, Output out),
         out = at::add(at::mul(other, alpha), self))
OPERATOR(aclnnInplaceAdd, (Updated selfRef, Input other, Number alpha),
         selfRef = at::add(selfRef, other, alpha))
OPERATOR(aclnnInplaceAdds, (Updated selfRef, Number other, Number alpha),
         selfRef = at::add(selfRef, other, alpha))
OPERATOR(aclnnSub, (Input self, Input other, Number alpha, Output out),
         out = at::sub(self, other, alpha))
OPERATOR(aclnnSubs, (Input self, Number other, Number alpha, Output out),
         out = at::sub(self, other, alpha))
OPERATOR(aclnnInplaceSub, (Updated selfRef, Input other, Number alpha),
         selfRef = at::sub(selfRef, other, alpha))
OPERATOR(aclnnInplaceSubs, (Updated selfRef, Number other, Number alpha),
         selfRef = at::sub(selfRef, other, alpha))
OPERATOR(aclnnRsub, (Input self, Input other, Number alpha, Output out),
         out = at::rsub(self, other, alpha))
OPERATOR(aclnnRsubs, (Input self, Number other, Number alpha, Output out),
         out = at::rsub(self, other, alpha))
TENSOR_TENSOR(Mul, mul)
TENSOR_NUMBER(Muls, mul)
INPLACE_TENSOR(Mul, mul)
INPLACE_NUMBER(Muls, mul)
TENSOR_TENSOR(Div, div)
TENSOR_NUMBER(Divs, div)
INPLACE_TENSOR(Div, div)
INPLACE_NUMBER(Divs, div)

namespace hostcann::aten {
// CANN's mode: 0 is true division, 1 truncates, 2 takes the floor.
static std::optional<std::string_view> rounding(int mode) {
  if (mode == 1) return "trunc";
  if (mode == 2) return "floor";
  return std::nullopt;
}
}  // namespace hostcann::aten

OPERATOR(aclnnDivMod, (Input self, Input other, int mode, Output out),
         out = at::div(self, other, rounding(mode)))
OPERATOR(aclnnDivMods, (Input self, Number other, int mode, Output out),
         out = at::div(self, other, rounding(mode)))
OPERATOR(aclnnInplaceDivMod, (Updated selfRef, Input other, int mode),
         selfRef = at::div(selfRef, other, rounding(mode)))
OPERATOR(aclnnInplaceDivMods, (Updated selfRef, Number other, int mode),
         selfRef = at::div(selfRef, other, rounding(mode)))
TENSOR_TENSOR(FloorDivide, floor_divide)
TENSOR_NUMBER(FloorDivides, floor_divide)
INPLACE_TENSOR(FloorDivide, floor_divide)
INPLACE_NUMBER(FloorDivides, floor_divide)
TENSOR_TENSOR(FmodTensor, fmod)
TENSOR_NUMBER(FmodScalar, fmod)
INPLACE_TENSOR(FmodTensor, fmod)
INPLACE_NUMBER(FmodScalar, fmod)
TENSOR_TENSOR(RemainderTensorTensor, remainder)
TENSOR_NUMBER(RemainderTensorScalar, remainder)
OPERATOR(aclnnRemainderScalarTensor, (Number self, Input other, Output out),
         out = at::remainder(self, other))
INPLACE_TENSOR(RemainderTensorTensor, remainder)
INPLACE_NUMBER(RemainderTensorScalar, remainder)
TENSOR_TENSOR(PowTensorTensor, pow)
TENSOR_NUMBER(PowTensorScalar, pow)
OPERATOR(aclnnPowScalarTensor, (Number self, Input exponent, Output out),
         out = at::pow(self, exponent))
INPLACE_TENSOR(PowTensorTensor, pow)
INPLACE_NUMBER(PowTensorScalar, pow)
TENSOR_TENSOR(Maximum, maximum)
TENSOR_TENSOR(Minimum, minimum)
TENSOR_TENSOR(Atan2, atan2)
INPLACE_TENSOR(Atan2, atan2)
TENSOR_TENSOR(LogAddExp, logaddexp)
TENSOR_TENSOR(XLogYTensor, xlogy)
TENSOR_TENSOR(Gcd, gcd)
OPERATOR(aclnnClampTensor, (Input self, OptionalInput min, OptionalInput max, Output out),
         out = at::clamp(self, min, max))
TENSOR_TENSOR(ClampMinTensor, clamp_min)
TENSOR_TENSOR(ClampMaxTensor, clamp_max)
INPLACE_TENSOR(ClampMinTensor, clamp_min)
INPLACE_TENSOR(ClampMaxTensor, clamp_max)
OPERATOR(aclnnAddcmul, (Input self, Input tensor1, Input tensor2, Number value, Output out),
         out = at::addcmul(self, tensor1, tensor2, value))
OPERATOR(aclnnInplaceAddcmul, (Updated selfRef, Input tensor1, Input tensor2, Number value),
         selfRef = at::addcmul(selfRef, tensor1, tensor2, value))
OPERATOR(aclnnAddcdiv, (Input self, Input tensor1, Input tensor2, Number value, Output out),
         out = at::addcdiv(self, tensor1, tensor2, value))
OPERATOR(aclnnInplaceAddcdiv, (Updated selfRef, Input tensor1, Input tensor2, Number value),
         selfRef = at::addcdiv(selfRef, tensor1, tensor2, value))
OPERATOR(aclnnLerp, (Input self, Input end, Input weight, Output out),
         out = at::lerp(self, end, weight))
OPERATOR(aclnnLerps, (Input self, Input end, Number weight, Output out),
         out = at::lerp(self, end, weight))
OPERATOR(aclnnInplaceLerp, (Updated selfRef, Input end, Input weight),
         selfRef = at::lerp(selfRef, end, weight))
OPERATOR(aclnnInplaceLerps, (Updated selfRef, Input end, Number weight),
         selfRef = at::lerp(selfRef, end, weight))

// ---- bits ----

TENSOR_TENSOR(BitwiseAndTensor, bitwise_and)
TENSOR_NUMBER(BitwiseAndScalar, bitwise_and)
INPLACE_TENSOR(BitwiseAndTensor, bitwise_and)
INPLACE_NUMBER(BitwiseAndScalar, bitwise_and)
TENSOR_TENSOR(BitwiseOrTensor, bitwise_or)
TENSOR_NUMBER(BitwiseOrScalar, bitwise_or)
TENSOR_TENSOR(BitwiseXorTensor, bitwise_xor)
TENSOR_NUMBER(BitwiseXorScalar, bitwise_xor)
INPLACE_TENSOR(BitwiseXorTensor, bitwise_xor)
INPLACE_NUMBER(BitwiseXorScalar, bitwise_xor)
TENSOR_TENSOR(LeftShift, bitwise_left_shift)
TENSOR_NUMBER(LeftShifts, bitwise_left_shift)
TENSOR_TENSOR(RightShift, bitwise_right_shift)

// ---- comparisons and logic ----

#define COMPARISON(name, function)       \
  TENSOR_TENSOR(name##Tensor, function)  \
  TENSOR_NUMBER(name##Scalar, function)  \
  INPLACE_TENSOR(name##Tensor, function) \
  INPLACE_NUMBER(name##Scalar, function)

COMPARISON(Eq, eq)
COMPARISON(Ne, ne)
COMPARISON(Lt, lt)
COMPARISON(Le, le)
COMPARISON(Gt, gt)
COMPARISON(Ge, ge)
TENSOR_TENSOR(LogicalAnd, logical_and)
INPLACE_TENSOR(LogicalAnd, logical_and)
TENSOR_TENSOR(LogicalOr, logical_or)
INPLACE_TENSOR(LogicalOr, logical_or)
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
