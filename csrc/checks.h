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

/// Whether a comparison of sizes holds; of symbolic ones it becomes a guard.
inline bool expect(const c10::SymBool& condition) {
  return condition.expect_true(__FILE__, __LINE__);
}

/// A dense result beside `model`, not initialised.
at::Tensor allocate(c10::SymIntArrayRef shape, c10::ScalarType dtype, const at::Tensor& model);

/// "[4, 32000] BFloat16 on cpu": how errors describe a tensor.
std::string describe(const at::Tensor& tensor);

}  // namespace ascend_sample
