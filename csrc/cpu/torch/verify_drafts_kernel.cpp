// verify_drafts for CPU tensors: the places of drafts, each by the core of targets.h once it is
// reached.
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "requests_reader.h"

namespace ascend_sample::cpu {
namespace {

/// Raises unless each request has a place, and the last one's are the last.
void check_ends(const int64_t* ends, int64_t requests, int64_t places) {
  int64_t before = 0;
  for (int64_t request = 0; request < requests; ++request) {
    TORCH_CHECK_VALUE(ends[request] > before, VerifyDraftsArguments::kName,
                      ": ends must grow from 0 by at least 1 for each request, got ", ends[request],
                      " after ", before, ". A request without drafts has one row.");
    before = ends[request];
  }
  TORCH_CHECK_VALUE(before == places, VerifyDraftsArguments::kName,
                    ": ends must end with the number of rows of logits (", places, "), got ",
                    before, ". A request with d drafts has d + 1 rows.");
}

/// Raises unless the first place of each request follows none, and each other one an earlier one.
void check_parents(const int64_t* parents, const int64_t* ends, int64_t requests) {
  int64_t place = 0;
  for (int64_t request = 0; request < requests; ++request) {
    const int64_t first = place;
    for (; place < ends[request]; ++place) {
      const int64_t number = place - first;
      const bool is_earlier = parents[place] >= 0 && parents[place] < number;
      TORCH_CHECK_VALUE(number == 0 ? parents[place] == -1 : is_earlier,
                        VerifyDraftsArguments::kName,
                        ": parents must be -1 for the first place of a request and an earlier "
                        "place of it for each other one, got ",
                        parents[place], " for place ", number, " of request ", request,
                        ". Number places from the root on.");
    }
  }
}

Proposals proposals_of(const VerifyDraftsArguments& arguments, Reader& reader) {
  const auto& [probabilities, candidates] =
      std::tie(arguments.draft_probabilities, arguments.draft_candidates);
  Proposals proposals{};
  if (probabilities.has_value()) {
    proposals.probabilities = reader.table<float>(*probabilities);
    proposals.columns = probabilities->size(1);
  }
  if (candidates.has_value()) {
    proposals.candidates = reader.table<int64_t>(*candidates);
  }
  return proposals;
}

VerifyDraftsArguments::Results verify_drafts_kernel(const VerifyDraftsArguments& arguments) {
  arguments.check();
  Reader reader;
  const auto* const ends = reader.list<int64_t>(arguments.ends);
  check_ends(ends, arguments.ends.size(0), arguments.logits.size(0));
  auto [token_ids, status, accepted] = arguments.allocate_outputs();
  std::optional<Trees> trees;
  std::vector<int64_t> path;
  if (arguments.parents.has_value()) {
    path.resize(static_cast<size_t>(token_ids.size(0)));
    trees = {.parents = reader.list<int64_t>(*arguments.parents), .path = path.data()};
    check_parents(trees->parents, ends, arguments.ends.size(0));
  }
  const VerifyingCall call{.places = sampling_call_of(arguments, reader, token_ids, status),
                           .batch_size = arguments.ends.size(0),
                           .ends = ends,
                           .drafts = reader.list<int64_t>(arguments.draft_ids),
                           .rule = static_cast<DraftRule>(arguments.rule),
                           .proposals = proposals_of(arguments, reader),
                           .acceptance = static_cast<uint32_t>(arguments.acceptance_purpose),
                           .resampling = static_cast<uint32_t>(arguments.resampling_purpose),
                           .accepted = accepted.mutable_data_ptr<int64_t>(),
                           .trees = trees};
  serve(&Kernel::verify, call);
  return {token_ids, status, accepted};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(VerifyDraftsArguments::kName, adapted<&verify_drafts_kernel>);
}

}  // namespace ascend_sample::cpu
