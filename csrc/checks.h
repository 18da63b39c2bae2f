// What the rules of several operators have in common. The rules of each, and its outputs, stand in
// checks.cpp and sampling_checks.cpp, once: every kernel (CPU, NPU, composite and fake) calls them,
// so that none can drift. Source: docs/semantics.md, sections 1 and 5, and docs/semantics_v2.md.
#pragma once

#include <string>

#include "contract.h"
#include "operators.h"

namespace ascend_sample {

/// The rules for logits alone, in the same words.
void check_logits(const char* op, const at::Tensor& logits);

/// The rule for any tensor: it is dense and strided; `name` is the argument's.
void check_layout(const char* op, const at::Tensor& tensor, const char* name);

/// "[4, 32000] BFloat16 on cpu": how errors describe a tensor.
std::string describe(const at::Tensor& tensor);

}  // namespace ascend_sample
