// Matrix products. cubeMathType chooses reduced-precision inputs on a device; here products keep
// their type.
#include "hostcann/aten/operator.h"

OPERATOR(aclnnMatmul, (Input self, Input mat2, Output out, int8_t cubeMathType),
         out = at::matmul(self, mat2))
OPERATOR(aclnnMm, (Input self, Input mat2, Output out, int8_t cubeMathType),
         out = at::mm(self, mat2))
OPERATOR(aclnnBatchMatMul, (Input self, Input mat2, Output out, int8_t cubeMathType),
         out = at::bmm(self, mat2))
OPERATOR(aclnnMv, (Input self, Input vec, Output out, int8_t cubeMathType), out = at::mv(self, vec))
OPERATOR(aclnnDot, (Input self, Input tensor, Output out), out = at::dot(self, tensor))
OPERATOR(aclnnAddmm,
         (Input self, Input mat1, Input mat2, Number beta, Number alpha, Output out,
          int8_t cubeMathType),
         out = at::addmm(self, mat1, mat2, beta, alpha))
OPERATOR(aclnnInplaceAddmm,
         (Updated selfRef, Input mat1, Input mat2, Number beta, Number alpha, int8_t cubeMathType),
         selfRef = at::addmm(selfRef, mat1, mat2, beta, alpha))
OPERATOR(aclnnBaddbmm,
         (Input self, Input batch1, Input batch2, Number beta, Number alpha, Output out,
          int8_t cubeMathType),
         out = at::baddbmm(self, batch1, batch2, beta, alpha))
OPERATOR(aclnnAddbmm,
         (Input self, Input batch1, Input batch2, Number beta, Number alpha, Output out,
          int8_t cubeMathType),
         out = at::addbmm(self, batch1, batch2, beta, alpha))
// alpha before beta: the one product whose C interface has them so.
OPERATOR(aclnnAddmv,
         (Input self, Input mat, Input vec, Number alpha, Number beta, Output out,
          int8_t cubeMathType),
         out = at::addmv(self, mat, vec, beta, alpha))
OPERATOR(aclnnAddr, (Input self, Input vec1, Input vec2, Number beta, Number alpha, Output out),
         out = at::addr(self, vec1, vec2, beta, alpha))
