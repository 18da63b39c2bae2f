// A peer of the operator: sampling over an array of (id, logit) candidates with the standard
// library's partial sort, one row after the other, as C++ inference engines do it.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace ascend_sample::benchmarks {
namespace {

struct Candidate {
  int32_t id;
  float logit;
  float probability;
};

using Candidates = std::vector<Candidate>;

constexpr size_t kFirstSorted = 256;  // of top-p alone; four times as many, each time they are few
constexpr size_t kSortAllFrom = 8;    // once an eighth of the row is wanted, sort all the rest

bool is_better(const Candidate& left, const Candidate& right) { return left.logit > right.logit; }

/// Sorts [sorted, count) of the candidates, which follow those that are sorted already.
void sort_next(Candidates& candidates, size_t sorted, size_t count) {
  const auto begin = candidates.begin() + static_cast<std::ptrdiff_t>(sorted);
  if (count == candidates.size()) {
    std::sort(begin, candidates.end(), is_better);
  } else {
    std::partial_sort(begin, candidates.begin() + static_cast<std::ptrdiff_t>(count),
                      candidates.end(), is_better);
  }
}

void set_probabilities(Candidates& candidates) {
  float maximum = -std::numeric_limits<float>::infinity();
  for (const Candidate& candidate : candidates) {
    maximum = std::max(maximum, candidate.logit);
  }
  double sum = 0;
  for (Candidate& candidate : candidates) {
    candidate.probability = std::exp(candidate.logit - maximum);
    sum += candidate.probability;
  }
  const auto scale = static_cast<float>(1.0 / sum);
  for (Candidate& candidate : candidates) {
    candidate.probability *= scale;
  }
}

/// How many of the candidates exceed p together; sorts no more of them than it must.
size_t count_until_exceeding(Candidates& candidates, size_t sorted, double p) {
  double sum = 0;
  for (size_t rank = 0; rank < candidates.size(); ++rank) {
    if (rank == sorted) {
      const size_t wanted = std::max(kFirstSorted, 4 * sorted);
      const size_t count = wanted > candidates.size() / kSortAllFrom ? candidates.size() : wanted;
      sort_next(candidates, sorted, count);
      sorted = count;
    }
    sum += candidates[rank].probability;
    if (sum > p) {
      return rank + 1;
    }
  }
  return candidates.size();
}

/// The exponential race: noise belongs to the place among the candidates.
int64_t draw(const Candidates& candidates, const float* q) {
  float best = -1;
  int32_t id = 0;
  for (size_t place = 0; place < candidates.size(); ++place) {
    const float score = candidates[place].probability / q[place];
    if (score > best) {
      best = score;
      id = candidates[place].id;
    }
  }
  return id;
}

template <typename scalar_t>
int64_t sample_row(Candidates& candidates, const scalar_t* logits, int64_t vocab_size, int64_t k,
                   double p, const float* q) {
  candidates.resize(static_cast<size_t>(vocab_size));
  for (int64_t id = 0; id < vocab_size; ++id) {
    candidates[static_cast<size_t>(id)] = {static_cast<int32_t>(id), static_cast<float>(logits[id]),
                                           0.0F};
  }
  size_t sorted = 0;
  if (k < vocab_size) {
    sort_next(candidates, 0, static_cast<size_t>(k));
    candidates.resize(static_cast<size_t>(k));
    sorted = candidates.size();
  }
  set_probabilities(candidates);
  if (p < 1) {
    candidates.resize(count_until_exceeding(candidates, sorted, p));
  }
  return draw(candidates, q);
}

/// k == vocab_size skips top-k, p == 1 top-p. All tensors are contiguous, q [batch, vocab_size].
at::Tensor sample_candidates(const at::Tensor& logits, int64_t k, double p, const at::Tensor& q) {
  TORCH_CHECK(logits.is_contiguous() && q.is_contiguous(), "sample_candidates: contiguous only");
  const auto vocab_size = logits.size(1);
  at::Tensor selected = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
  auto* ids = selected.mutable_data_ptr<int64_t>();
  const auto* noise = q.const_data_ptr<float>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, logits.scalar_type(), "sample_candidates", [&] {
        const auto* data = logits.const_data_ptr<scalar_t>();
        at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
          thread_local Candidates candidates;
          for (int64_t row = begin; row < end; ++row) {
            ids[row] = sample_row(candidates, data + row * vocab_size, vocab_size, k, p,
                                  noise + row * vocab_size);
          }
        });
      });
  return selected;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(ascend_sample_benchmarks, m) {
  m.def("sample_candidates(Tensor logits, int k, float p, Tensor q) -> Tensor", &sample_candidates);
}

}  // namespace ascend_sample::benchmarks
