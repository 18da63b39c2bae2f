// Operators that only move elements: joining, repeating, reordering, cutting to a triangle.
#include "aten/operator.h"

OPERATOR(aclnnCat, (Inputs tensors, int64_t dim, Output out), out = at::cat(tensors, dim))
OPERATOR(aclnnStack, (Inputs tensors, int64_t dim, Output out), out = at::stack(tensors, dim))
OPERATOR(aclnnFlip, (Input self, Integers dims, Output out), out = at::flip(self, dims))
OPERATOR(aclnnRoll, (Input self, Integers shifts, Integers dims, Output out),
         out = at::roll(self, shifts, dims))
OPERATOR(aclnnRepeat, (Input self, Integers repeats, Output out), out = self.repeat(repeats))
OPERATOR(aclnnConstantPadNd, (Input self, Integers pad, Number value, Output out),
         out = at::constant_pad_nd(self, pad, value))
OPERATOR(aclnnTril, (Input self, int64_t diagonal, Output out), out = at::tril(self, diagonal))
OPERATOR(aclnnTriu, (Input self, int64_t diagonal, Output out), out = at::triu(self, diagonal))
OPERATOR(aclnnInplaceTril, (Updated selfRef, int64_t diagonal),
         selfRef = at::tril(selfRef, diagonal))
OPERATOR(aclnnInplaceTriu, (Updated selfRef, int64_t diagonal),
         selfRef = at::triu(selfRef, diagonal))

// outputSize repeats what out's sizes say.
OPERATOR(aclnnRepeatInterleave, (Input self, Input repeats, int64_t outputSize, Output out),
         out = at::repeat_interleave(self, repeats))
OPERATOR(aclnnRepeatInterleaveWithDim,
         (Input self, Input repeats, int64_t dim, int64_t outputSize, Output out),
         out = at::repeat_interleave(self, repeats, dim))
OPERATOR(aclnnRepeatInterleaveInt, (Input self, int64_t repeats, int64_t outputSize, Output out),
         out = at::repeat_interleave(self, repeats))
OPERATOR(aclnnRepeatInterleaveIntWithDim,
         (Input self, int64_t repeats, int64_t dim, int64_t outputSize, Output out),
         out = at::repeat_interleave(self, repeats, dim))
OPERATOR(aclnnRepeatInterleaveTensor, (Input repeats, int64_t outputSize, Output out),
         out = at::repeat_interleave(repeats))
