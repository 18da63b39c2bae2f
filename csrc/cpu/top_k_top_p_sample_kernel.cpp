// The CPU kernel: rows in parallel, each by sample_row on a float32 copy in its thread's scratch.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "checks.h"
#include "sample_row.h"

namespace ascend_sample::cpu {
namespace {

template <typename scalar_t>
void load_row(const scalar_t* data, int64_t stride, int64_t vocab_size,
              std::vector<float>& values) {
  values.resize(static_cast<size_t>(vocab_size));
  for (int64_t id = 0; id < vocab_size; ++id) {
    const auto value = static_cast<float>(data[id * stride]);
    values[static_cast<size_t>(id)] =
        std::isnan(value) ? -std::numeric_limits<float>::infinity() : value;
  }
}

template <typename scalar_t>
void sample_rows(const SampleArguments& arguments, const at::Tensor& selected,
                 const at::Tensor& kept) {
  const auto& [logits, k, p, q, eps, is_need_logits, top_k_guess] = arguments;
  const auto vocab_size = logits.size(1);
  const auto* logits_data = logits.const_data_ptr<scalar_t>();
  const auto* k_data = k.const_data_ptr<int32_t>();
  const auto* p_data = p.const_data_ptr<scalar_t>();
  const auto* q_data = q.has_value() ? q->const_data_ptr<float>() : nullptr;
  const auto q_row = q.has_value() ? q->stride(0) : 0;
  const auto q_column = q.has_value() ? q->stride(1) : 0;
  auto* selected_data = selected.mutable_data_ptr<int64_t>();
  auto* kept_data = is_need_logits ? kept.mutable_data_ptr<float>() : nullptr;

  at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
    thread_local RowScratch scratch;
    for (int64_t row = begin; row < end; ++row) {
      load_row(logits_data + row * logits.stride(0), logits.stride(1), vocab_size, scratch.values);
      const RowParameters parameters{k_data[row * k.stride(0)],
                                     static_cast<float>(p_data[row * p.stride(0)]),
                                     static_cast<float>(eps), top_k_guess};
      const RowNoise noise{q_data == nullptr ? nullptr : q_data + row * q_row, q_column};
      selected_data[row] =
          sample_row(scratch, parameters, noise,
                     kept_data == nullptr ? nullptr : kept_data + row * vocab_size);
    }
  });
}

std::tuple<at::Tensor, at::Tensor> top_k_top_p_sample_kernel(
    const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
    const std::optional<at::Tensor>& q, double eps, bool is_need_logits, int64_t top_k_guess) {
  const SampleArguments arguments{logits, k, p, q, eps, is_need_logits, top_k_guess};
  check_arguments(arguments);
  auto [selected, kept] = allocate_outputs(arguments);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, logits.scalar_type(), kOperatorName,
                                  [&] { sample_rows<scalar_t>(arguments, selected, kept); });
  return {selected, kept};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl("top_k_top_p_sample", &top_k_top_p_sample_kernel);
}

}  // namespace ascend_sample::cpu
