// The core as torch calls it: which code path this process takes, and on which threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <span>

#include "arithmetic.h"
#include "cpu/targets.h"

namespace ascend_sample::cpu {

/// The widest that the machine has, unless the environment names another: decided once.
const Target& target_in_use();

/// The calling thread's, kept from call to call.
Workspace& workspace_of_thread();

/// Points at logits of two dimensions, whose dtype was checked.
Logits logits_of(const at::Tensor& logits);

/// The numbers of an output, which is empty where it is not wanted.
template <typename Element>
std::span<Element> written(const at::Tensor& output) {
  return {output.mutable_data_ptr<Element>(), static_cast<size_t>(output.numel())};
}

/// Serves all rows of a call with one of the kernel's functions, on torch's threads. A thread that
/// is done with some takes the next ones, since rows of other requests may take much longer.
template <typename Call>
void serve(RowsFunction<Call> Kernel::* function, const Call& call) {
  constexpr int64_t kPartsOfThread = 32;
  const RowsFunction<Call> serve_rows = target_in_use().kernel->*function;
  const int64_t count = call.batch_size;
  const int64_t threads = at::get_num_threads();
  const int64_t part = std::max<int64_t>(1, count / (threads * kPartsOfThread));
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min(threads, count), 1, [&](int64_t, int64_t) {
    const StandardArithmetic standard;
    for (int64_t first = 0; (first = next.fetch_add(part)) < count;) {
      serve_rows(call, first, std::min(first + part, count), workspace_of_thread());
    }
  });
}

}  // namespace ascend_sample::cpu
