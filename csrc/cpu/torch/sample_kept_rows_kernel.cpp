// sample_kept_rows for CPU tensors: sample_rows, and what is kept of rows, or how probable their
// tokens are in that, by the core of targets.h.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "requests_reader.h"

namespace ascend_sample::cpu {
namespace {

/// Puts the lists of all rows one behind the other; each goes when it has been copied. To wake
/// other threads takes longer than to copy a few.
void gather(std::vector<KeptList>& lists, const int64_t* offsets, int32_t* ids, float* log_probs) {
  constexpr int64_t kFew = 1 << 16;
  const auto rows = static_cast<int64_t>(lists.size());
  const int64_t grain = offsets[rows] < kFew ? rows + 1 : 1;
  at::parallel_for(0, rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      KeptList& list = lists[static_cast<size_t>(row)];
      std::copy_n(list.ids(), list.count(), ids + offsets[row]);
      std::copy_n(list.log_probs(), list.count(), log_probs + offsets[row]);
      list.clear();
    }
  });
}

SampleKeptRowsArguments::Results sample_kept_rows_kernel(const SampleKeptRowsArguments& arguments) {
  arguments.check();
  Reader reader;
  const auto rows = reader.rows(SampleKeptRowsArguments::kName, arguments.rows, arguments.logits);
  const int64_t count = arguments.is_wanted.size(0);
  const at::Tensor token_ids = at::empty({count}, at::kLong);
  const at::Tensor status = at::empty({count}, at::kChar);
  std::vector<KeptList> lists(static_cast<size_t>(count));
  SamplingCall call = sampling_call_of(arguments, reader, token_ids, status);
  call.rows = rows;
  call.is_kept_wanted = reader.list<bool>(arguments.is_wanted);
  call.kept = lists.data();
  RememberingRows remembering{};
  const at::Tensor token_log_probs =
      at::zeros({arguments.near.has_value() ? count : 0}, at::kFloat);
  if (arguments.near.has_value()) {
    remembering = {reader.list<float>(*arguments.near), token_log_probs.mutable_data_ptr<float>()};
    call.remembering = &remembering;
  }
  serve(&Kernel::sample_requests, call);
  const at::Tensor offsets = at::empty({count + 1}, at::kLong);
  const at::Tensor counts = at::empty({count}, at::kInt);
  auto* const ends = offsets.mutable_data_ptr<int64_t>();
  auto* const sizes = counts.mutable_data_ptr<int32_t>();
  ends[0] = 0;
  for (int64_t row = 0; row < count; ++row) {
    sizes[row] = static_cast<int32_t>(lists[static_cast<size_t>(row)].count());
    ends[row + 1] = ends[row] + sizes[row];
  }
  const at::Tensor ids = at::empty({ends[count]}, at::kInt);
  const at::Tensor log_probs = at::empty({ends[count]}, at::kFloat);
  gather(lists, ends, ids.mutable_data_ptr<int32_t>(), log_probs.mutable_data_ptr<float>());
  return {token_ids, status, offsets, ids, log_probs, counts, token_log_probs};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(SampleKeptRowsArguments::kName, adapted<&sample_kept_rows_kernel>);
}

}  // namespace ascend_sample::cpu
