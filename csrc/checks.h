// What the rules of several operators have in common. The rules of each, and its outputs, stand in
// checks.cpp and sampling_checks.cpp, once: every kernel (CPU, NPU, composite and fake) calls them,
// so that none can drift. Source: docs/semantics.md, sections 1 and 5, and docs/semantics_v2.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "contract.h"

namespace ascend_sample {

/// The rules for logits alone.
void check_logits(const char* op, const at::Tensor& logits);

/// The rule for any tensor: it is dense and strided; `name` is the argument's.
void check_layout(const char* op, const at::Tensor& tensor, const char* name);

/// How many dimensions a tensor has, and how errors say that.
struct Shape {
  int64_t dimensions;
  const char* text;
  const char* remedy;
};

/// The rules for a tensor of one dtype and so many dimensions, on the device of another tensor.
void check_kind(const char* op, const at::Tensor& tensor, const char* name, c10::ScalarType dtype,
                const Shape& shape, const at::Tensor& model, const char* model_name = "logits");

/// The same of a list.
void check_list(const char* op, const at::Tensor& tensor, const char* name, c10::ScalarType dtype,
                const at::Tensor& model, const char* model_name = "logits");

/// The same, with a value for each row.
void check_per_row(const char* op, const at::Tensor& tensor, const char* name,
                   c10::ScalarType dtype, const c10::SymInt& rows, const at::Tensor& model,
                   const char* model_name = "logits");

/// The rule for what noise is for.
void check_purpose(const char* op, int64_t purpose, const char* name = "purpose");

/// How many rows are meant: those that are named, or all; the rules for their list.
c10::SymInt count_rows(const char* op, const at::Tensor& logits,
                       const std::optional<at::Tensor>& rows, const char* name = "rows");

/// The rule for how many of the best are wanted.
void check_count(const char* op, int64_t count, const at::Tensor& logits,
                 const char* name = "count");

/// Whether a comparison of sizes holds; of symbolic ones it becomes a guard.
inline bool expect(const c10::SymBool& condition) {
  return condition.expect_true(__FILE__, __LINE__);
}

/// A dense result beside `model`, not initialised.
at::Tensor allocate(c10::SymIntArrayRef shape, c10::ScalarType dtype, const at::Tensor& model);

/// "[4, 32000] BFloat16 on cpu": how errors describe a tensor.
std::string describe(const at::Tensor& tensor);

}  // namespace ascend_sample
