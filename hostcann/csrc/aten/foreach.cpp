// Operators of lists of tensors, by which optimizers update all parameters at once. Results may be
// the operands.
#include "aten/operator.h"

#define FOREACH_UNARY(name, function) \
  OPERATOR(aclnnForeach##name, (Inputs x, Outputs out), out = at::_foreach_##function(x))
#define FOREACH_BINARY(name, function)                              \
  OPERATOR(aclnnForeach##name, (Inputs x1, Inputs x2, Outputs out), \
           out = at::_foreach_##function(x1, x2))
// With one number for all tensors, and with one for each.
#define FOREACH_WITH_NUMBERS(name, function)                                         \
  OPERATOR(aclnnForeach##name##ScalarV2, (Inputs x, Number scalar, Outputs out),     \
           out = at::_foreach_##function(x, scalar))                                 \
  OPERATOR(aclnnForeach##name##ScalarList, (Inputs x, Numbers scalars, Outputs out), \
           out = at::_foreach_##function(x, scalars))
// The numbers of each are a tensor here: so torch_npu calls it.
#define FOREACH_OF_THREE(name, function)                                  \
  OPERATOR(aclnnForeach##name##ScalarV2,                                  \
           (Inputs x1, Inputs x2, Inputs x3, Number scalar, Outputs out), \
           out = at::_foreach_##function(x1, x2, x3, scalar))             \
  OPERATOR(aclnnForeach##name##ScalarList,                                \
           (Inputs x1, Inputs x2, Inputs x3, Input scalars, Outputs out), \
           out = at::_foreach_##function(x1, x2, x3, scalars))

FOREACH_UNARY(Abs, abs)
FOREACH_UNARY(Exp, exp)
FOREACH_UNARY(Log, log)
FOREACH_UNARY(Neg, neg)
FOREACH_UNARY(Reciprocal, reciprocal)
FOREACH_UNARY(Sigmoid, sigmoid)
FOREACH_UNARY(Sign, sign)
FOREACH_UNARY(Sqrt, sqrt)
FOREACH_UNARY(Tanh, tanh)
OPERATOR(aclnnForeachCopy, (Inputs x, Outputs out), out = x)

OPERATOR(aclnnForeachAddListV2, (Inputs x1, Inputs x2, Number alpha, Outputs out),
         out = at::_foreach_add(x1, x2, alpha))
OPERATOR(aclnnForeachSubListV2, (Inputs x1, Inputs x2, Number alpha, Outputs out),
         out = at::_foreach_sub(x1, x2, alpha))
FOREACH_BINARY(MulList, mul)
FOREACH_BINARY(DivList, div)
FOREACH_BINARY(MaximumList, maximum)
FOREACH_BINARY(MinimumList, minimum)
FOREACH_BINARY(PowList, pow)

FOREACH_WITH_NUMBERS(Add, add)
FOREACH_WITH_NUMBERS(Sub, sub)
FOREACH_WITH_NUMBERS(Mul, mul)
FOREACH_WITH_NUMBERS(Div, div)
FOREACH_WITH_NUMBERS(Maximum, maximum)
FOREACH_WITH_NUMBERS(Minimum, minimum)
FOREACH_WITH_NUMBERS(Pow, pow)
OPERATOR(aclnnForeachPowScalarAndTensor, (Number scalar, Inputs x, Outputs out),
         out = at::_foreach_pow(scalar, x))

FOREACH_OF_THREE(Addcmul, addcmul)
FOREACH_OF_THREE(Addcdiv, addcdiv)
OPERATOR(aclnnForeachLerpScalar, (Inputs x1, Inputs x2, Number weight, Outputs out),
         out = at::_foreach_lerp(x1, x2, weight))
OPERATOR(aclnnForeachLerpList, (Inputs x1, Inputs x2, Inputs weight, Outputs out),
         out = at::_foreach_lerp(x1, x2, weight))
OPERATOR(aclnnForeachNorm, (Inputs x, Number ord, Outputs out), out = at::_foreach_norm(x, ord))

// What a GradScaler calls: the first divides gradients by their scale, and says whether one is not
// finite; the second finds the next scale.
OPERATOR(aclnnForeachNonFiniteCheckAndUnscale,
         (AllUpdated scaledGrads, Updated foundInf, Input inScale), at::Tensor found = foundInf;
         at::_amp_foreach_non_finite_check_and_unscale_(scaledGrads.tensors, found, inScale))
OPERATOR(aclnnAmpUpdateScale,
         (Input currentScale, Input growthTracker, Input foundInf, double growthFactor,
          double backoffFactor, int64_t growthInterval, Output updatedScale,
          Output updatedGrowthTracker),
         at::Tensor scale = currentScale.clone();
         at::Tensor tracker = growthTracker.clone();
         at::_amp_update_scale_(scale, tracker, foundInf, growthFactor, backoffFactor,
                                growthInterval);
         updatedScale = scale; updatedGrowthTracker = tracker)
