// The core as torch calls it: which code path this process takes, and on which threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <span>

#include "cpu/targets.h"

namespace ascend_sample::cpu {

/// The widest that the machine has, unless the environment names another: decided once.
const Target& target_in_use();

/// The calling thread's, kept from call to call.
Scratch& scratch_of_thread();

/// Points at logits of two dimensions, whose dtype was checked.
Logits logits_of(const at::Tensor& logits);

/// The numbers of an output, which is empty where it is not wanted.
template <typename Element>
std::span<Element> written(const at::Tensor& output) {
  return {output.mutable_data_ptr<Element>(), static_cast<size_t>(output.numel())};
}

/// Serves all rows of a call with one of the kernel's functions, on torch's threads.
template <typename Call>
void serve(RowsFunction<Call> Kernel::* function, const Call& call) {
  const RowsFunction<Call> serve_rows = target_in_use().kernel->*function;
  at::parallel_for(0, call.batch_size, 1, [&](int64_t first_row, int64_t last_row) {
    serve_rows(call, first_row, last_row, scratch_of_thread());
  });
}

}  // namespace ascend_sample::cpu
