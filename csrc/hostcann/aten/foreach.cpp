// Operators of lists of tensors, by which optimizers update all parameters at once. Results may be
// the operands.
#include "hostcann/aten/operator.h"

#define UNARY(name, function) \
  OPERATOR(aclnnForeach##name, (Inputs x, Outputs out), out = at::_foreach_##function(x))
#define BINARY(name, function)                                      \
  OPERATOR(aclnnForeach##name, (Inputs x1, Inputs x2, Outputs out), \
           out = at::_foreach_##function(x1, x2))
// With one number for all tensors, and with one for each.
#define WITH_NUMBERS(name, function)                                                 \
  OPERATOR(aclnnForeach##name##ScalarV2, (Inputs x, Number scalar, Outputs out),     \
           out = at::_foreach_##function(x, scalar))                                 \
  OPERATOR(aclnnForeach##name##ScalarList, (Inputs x, Numbers scalars, Outputs out), \
           out = at::_foreach_##function(x, scalars))
// The numbers of each are a tensor here: so torch_npu calls it.
#define OF_THREE(name, function)                                          \
  OPERATOR(aclnnForeach##name##ScalarV2,                                  \
           (Inputs x1, Inputs x2, Inputs x3, Number scalar, Outputs out), \
           out = at::_foreach_##function(x1, x2, x3, scalar))             \
  OPERATOR(aclnnForeach##name##ScalarList,                                \
           (Inputs x1, Inputs x2, Inputs x3, Input scalars, Outputs out), \
           out = at::_foreach_##function(x1, x2, x3, scalars))

UNARY(Abs, abs)
UNARY(Exp, exp)
UNARY(Log, log)
UNARY(Neg, neg)
UNARY(Reciprocal, reciprocal)
UNARY(Sigmoid, sigmoid)
UNARY(Sign, sign)
UNARY(Sqrt, sqrt)
UNARY(Tanh, tanh)
OPERATOR(aclnnForeachCopy, (Inputs x, Outputs out), out = x)

OPERATOR(aclnnForeachAddListV2, (Inputs x1, Inputs x2, Number alpha, Outputs out),
         out = at::_foreach_add(x1, x2, alpha))
OPERATOR(aclnnForeachSubListV2, (Inputs x1, Inputs x2, Number alpha, Outputs out),
         out = at::_foreach_sub(x1, x2, alpha))
BINARY(MulList, mul)
BINARY(DivList, div)
BINARY(MaximumList, maximum)
BINARY(MinimumList, minimum)
BINARY(PowList, pow)

WITH_NUMBERS(Add, add)
WITH_NUMBERS(Sub, sub)
WITH_NUMBERS(Mul, mul)
WITH_NUMBERS(Div, div)
WITH_NUMBERS(Maximum, maximum)
WITH_NUMBERS(Minimum, minimum)
WITH_NUMBERS(Pow, pow)
OPERATOR(aclnnForeachPowScalarAndTensor, (Number scalar, Inputs x, Outputs out),
         out = at::_foreach_pow(scalar, x))

OF_THREE(Addcmul, addcmul)
OF_THREE(Addcdiv, addcdiv)
OPERATOR(aclnnForeachLerpScalar, (Inputs x1, Inputs x2, Number weight, Outputs out),
         out = at::_foreach_lerp(x1, x2, weight))
OPERATOR(aclnnForeachLerpList, (Inputs x1, Inputs x2, Inputs weight, Outputs out),
         out = at::_foreach_lerp(x1, x2, weight))
OPERATOR(aclnnForeachNorm, (Inputs x, Number ord, Outputs out), out = at::_foreach_norm(x, ord))
