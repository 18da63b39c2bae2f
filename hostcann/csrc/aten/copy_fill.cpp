// Copies, casts, constants and sequences.
#include "aten/operator.h"

OPERATOR(aclnnInplaceCopy, (Output selfRef, Input src), selfRef = src.expand_as(selfRef.tensor()))
OPERATOR(aclnnCast, (Input self, DataType dtype, Output out), out = self.to(dtype))
OPERATOR(aclnnInplaceZero, (Output selfRef), selfRef.tensor().zero_())
OPERATOR(aclnnInplaceOne, (Output selfRef), selfRef.tensor().fill_(1))
OPERATOR(aclnnInplaceFillScalar, (Output selfRef, Number value), selfRef.tensor().fill_(value))
OPERATOR(aclnnInplaceFillTensor, (Output selfRef, Input value),
         selfRef.tensor().fill_(value.reshape({})))
OPERATOR(aclnnInplaceFillDiagonal, (Output selfRef, Number fillValue, bool wrap),
         selfRef.tensor().fill_diagonal_(fillValue, wrap))

OPERATOR(aclnnArange, (Number start, Number end, Number step, Output out),
         out = at::arange(start, end, step, out.options()))
OPERATOR(aclnnRange, (Number start, Number end, Number step, Output out),
         out = at::range(start, end, step, out.options()))
OPERATOR(aclnnLinspace, (Number start, Number end, int64_t steps, Output out),
         out = at::linspace(start, end, steps, out.options()))
OPERATOR(aclnnEye, (int64_t n, int64_t m, Output out), out = at::eye(n, m, out.options()))
