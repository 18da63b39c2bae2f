// Matrix products, convolutions, triangular systems. cubeMathType chooses reduced-precision inputs
// on a device; here products keep their type.
#include "aten/operator.h"

namespace hostcann::aten {

// transpose: the system is that of A's transpose, while `upper` says which half of A itself is
// read.
static at::Tensor solve_triangular(Input A, Input b, bool upper, bool transpose, bool unit) {
  return transpose ? at::linalg_solve_triangular(A.mT(), b, !upper, /*left=*/true, unit)
                   : at::linalg_solve_triangular(A, b, upper, /*left=*/true, unit);
}

}  // namespace hostcann::aten

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

OPERATOR(aclnnConvolution,
         (Input input, Input weight, OptionalInput bias, Integers stride, Integers padding,
          Integers dilation, bool transposed, Integers outputPadding, int64_t groups, Output output,
          int8_t cubeMathType),
         output = at::convolution(input, weight, bias, stride, padding, dilation, transposed,
                                  outputPadding, groups))
// mOut: a copy of A, broadcast as the systems are.
OPERATOR(aclnnTriangularSolve,
         (Input self, Input A, bool upper, bool transpose, bool unitriangular, Output xOut,
          Output mOut),
         xOut = solve_triangular(A, self, upper, transpose, unitriangular);
         mOut = A.expand_as(mOut.tensor()))
