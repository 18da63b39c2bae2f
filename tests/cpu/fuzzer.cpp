#include "fuzzer.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <variant>

#include "placed_case.h"

namespace {

/// What a code path's workspace holds: nothing else takes memory that is aligned more than others.
struct HeldBlock {
  size_t bytes;
  int path_number;
};

/// Of this thread, by where they are.
thread_local std::map<void*, HeldBlock> blocks;
thread_local int running_path = 0;

}  // namespace

void* operator new(size_t bytes, std::align_val_t alignment) {
  void* memory = nullptr;
  if (posix_memalign(&memory, static_cast<size_t>(alignment), bytes) != 0) {
    throw std::bad_alloc();
  }
  blocks[memory] = {bytes, running_path};
  return memory;
}

void operator delete(void* memory, std::align_val_t) noexcept {
  blocks.erase(memory);
  std::free(memory);
}

namespace ascend_sample::cpu::testing {

namespace {

constexpr int kMostShrinks = 4000;

constexpr void (*kSimplifications[])(FuzzCase&) = {
    [](FuzzCase& row) { row.logits_stride = row.q_stride = 1; },
    [](FuzzCase& row) { row.is_need_logits = row.wants_distribution(); },
    [](FuzzCase& row) { row.q.reset(); },
    [](FuzzCase& row) { row.min_p.reset(); },
    [](FuzzCase& row) {
      row.is_second = false;
      row.most_k = kMaxTopK;
      row.min_p.reset();
      row.request.reset();
    },
    [](FuzzCase& row) {
      if (row.wants_distribution()) {
        row.request->wants_distribution = row.is_need_logits = false;
      }
    },
    [](FuzzCase& row) { row.of_request([](auto& request) { request.temperature = 1.0F; }); },
    [](FuzzCase& row) { row.of_request([](auto& request) { request.p = 1.0F; }); },
    [](FuzzCase& row) { row.of_request([](auto& request) { request.min_p = 0.0F; }); },
    [](FuzzCase& row) { row.of_request([](auto& request) { request.wants_list = false; }); },
    [](FuzzCase& row) { row.of_request([](auto& request) { request.edits.addends.reset(); }); },
    [](FuzzCase& row) { row.of_request([](auto& request) { request.edits.penalties.reset(); }); },
    [](FuzzCase& row) { row.of_request([](auto& request) { request.edits.mask.reset(); }); },
    [](FuzzCase& row) { row.of_request([](auto& request) { request.edits.bitmask.reset(); }); },
    [](FuzzCase& row) { row.of_request([](auto& request) { request.edits.ranges.reset(); }); },
    [](FuzzCase& row) { row.eps = 0.0F; },
    [](FuzzCase& row) {
      if (row.ranking.has_value()) {
        row.ranking->count = std::min<int64_t>(row.ranking->count, 1);
      }
    },
};

struct Output {
  int64_t selected = kNotSelected;
  std::vector<float> kept;  // or the distribution
  std::vector<float> dense_weights;
  std::vector<int64_t> dense_ids;
  RowStatus status = RowStatus::kOk;

  uint64_t digest() const {
    uint64_t hash = hashed(0xCBF29CE484222325, &selected, sizeof(selected));
    hash = hashed(hash, kept.data(), kept.size() * sizeof(float));
    hash = hashed(hash, dense_weights.data(), dense_weights.size() * sizeof(float));
    return hashed(hash, dense_ids.data(), dense_ids.size() * sizeof(int64_t));
  }

  bool operator==(const Output& other) const {
    return selected == other.selected && status == other.status && same_bits(kept, other.kept) &&
           same_bits(dense_weights, other.dense_weights) && dense_ids == other.dense_ids;
  }

 private:
  static bool same_bits(const std::vector<float>& one, const std::vector<float>& other) {
    return one.size() == other.size() &&
           (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0);
  }
};

/// Writes over what earlier rows left in the workspace of the running path, which must not matter,
/// but where they promise to leave zeros.
void litter(const Workspace& work, size_t vocab_size) {
  const size_t most = 8 * vocab_size + 16'384;
  const int litter = running_path % 2 == 0 ? 0xFF : 0x42;
  for (const auto& [memory, block] : blocks) {
    if (block.path_number == running_path && memory != work.marks.held().data() &&
        memory != work.proposal.held().data()) {
      std::memset(memory, litter, std::min(block.bytes, most));
    }
  }
}

template <typename Element>
bool are_zeros(std::span<const Element> elements) {
  const auto held = std::as_bytes(elements);
  // Each byte is as the one before it: by memcmp, as this is most of what a short row takes.
  return held.empty() || (held[0] == std::byte{0} &&
                          std::memcmp(held.data(), held.data() + 1, held.size() - 1) == 0);
}

bool leaves_zeros(const Workspace& work) {
  return are_zeros(work.marks.held()) && are_zeros(work.proposal.held());
}

Output run(const Kernel& kernel, const OperatorCall& call, Workspace& work) {
  kernel.sample(call, 0, 1, work);
  Output output;
  output.selected = *call.selected;
  output.kept.assign(call.kept.begin(), call.kept.end());
  return output;
}

/// What is listed, if anything is, stands in the place of weights, with the token that is drawn
/// then in front of its ids.
Output run(const Kernel& kernel, const SamplingCall& call, Workspace& work) {
  SamplingCall plain = call;
  plain.kept = std::nullopt;
  kernel.sample_requests(plain, 0, 1, work);
  Output output;
  output.selected = *call.selected;
  output.status = *call.status;
  if (call.kept.has_value()) {
    kernel.sample_requests(call, 0, 1, work);
    const KeptList& list = *call.kept->lists;
    output.dense_weights.assign(list.log_probs(), list.log_probs() + list.count());
    output.dense_ids = {*call.selected};
    output.dense_ids.insert(output.dense_ids.end(), list.ids(), list.ids() + list.count());
  }
  return output;
}

/// What is wrong with the list of a row; empty: nothing.
std::string judge_list(const SamplingCall& call, const Output& output) {
  if (!call.kept.has_value() || output.status != RowStatus::kOk) {
    return "";
  }
  const std::span<const int64_t> ids(output.dense_ids);
  const auto listed = ids.subspan(1);
  if (ids[0] != output.selected) {
    return "it is another one where a list is wanted: " + std::to_string(ids[0]);
  }
  if (!std::binary_search(listed.begin(), listed.end(), ids[0])) {
    return "id " + std::to_string(ids[0]) + " is drawn, and not listed";
  }
  double sum = 0.0;
  for (const float log_prob : output.dense_weights) {
    sum += std::exp(static_cast<double>(log_prob));
  }
  return std::fabs(sum - 1.0) <= 1e-4 ? ""
                                      : "the listed probabilities sum to " + std::to_string(sum);
}
std::string judge_list(const auto& /*call*/, const Output& /*output*/) { return ""; }

/// The output without what is listed.
Output of_token(const SamplingCall& /*call*/, const Output& output) {
  Output rest = output;
  rest.dense_weights.clear();
  rest.dense_ids.clear();
  return rest;
}
const Output& of_token(const auto& /*call*/, const Output& output) { return output; }

Output run(const Kernel& kernel, const FilteringCall& call, Workspace& work) {
  kernel.filter(call, 0, 1, work);
  Output output;
  output.kept.assign(call.kept, call.kept + call.logits.vocab_size);
  return output;
}

Output run(const Kernel& kernel, const RankingCall& call, Workspace& work) {
  kernel.rank(call, 0, 1, work);
  Output output;
  output.selected = call.given.has_value() ? *call.given->ranks : 0;
  output.dense_weights.assign(call.numbers, call.numbers + call.width());
  output.dense_ids.assign(call.token_ids, call.token_ids + call.width());
  return output;
}

Oracle oracle_of(const Row& row, const auto& /*call*/) { return Oracle(row); }
RankingOracle oracle_of(const Row& row, const RankingCall& call) { return {row, call}; }

Verdict judge(const Row& /*row*/, const RankingOracle& oracle, const Output& output) {
  const std::string reason = oracle.judge(output.dense_weights, output.dense_ids, output.selected);
  return {reason.empty() ? Kind::kExact : Kind::kFailed, reason};
}

Verdict judge(const Row& row, const Oracle& oracle, const Output& output) {
  return row.wants_distribution
             ? oracle.judge_distribution(output.kept.data())
             : oracle.judge(output.selected, output.kept.empty() ? nullptr : output.kept.data());
}

}  // namespace

uint64_t hashed(uint64_t hash, const void* data, size_t bytes) {
  const auto* each = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ each[i]) * 0x100000001B3;
  }
  return hash;
}

Fuzzer::Fuzzer(unsigned most_seconds) : most_seconds_(most_seconds) {
  for (const Target& target : targets()) {
    if (target.is_available()) {
      paths_.push_back({target, static_cast<int>(paths_.size()), std::make_unique<Workspace>()});
    }
  }
}

std::string Fuzzer::path_names() const {
  std::string names;
  for (const auto& path : paths_) {
    names += " " + std::string(path.target.name);
  }
  return names;
}

Outcome Fuzzer::check(const FuzzCase& fuzz_case) {
  alarm(most_seconds_);
  const PlacedCase placed(fuzz_case);
  return std::visit([&](const auto& call) { return check_call(fuzz_case, call); }, placed.call());
}

template <typename Call>
Outcome Fuzzer::check_call(const FuzzCase& fuzz_case, const Call& call) {
  const Row row(call, 0);
  const auto oracle = oracle_of(row, call);
  Outcome outcome{oracle.scenario(), Kind::kExact, "", 0};
  std::optional<Output> first;
  for (const auto& path : paths_) {
    const PlacedCase placed(fuzz_case);
    running_path = path.number;
    Workspace new_workspace;
    Workspace& work = fuzz_case.has_used_workspace ? *path.work : new_workspace;
    if (fuzz_case.has_used_workspace) {
      litter(work, fuzz_case.logits.size());
    }
    // What is tried first must not matter: each path tries another way first.
    work.history = fuzz_case.history;
    work.history.large = static_cast<uint8_t>((fuzz_case.history.large + path.number) % 3);
    work.history.depth += path.number;
    const Call& own_call = std::get<Call>(placed.call());
    const Output output = run(*path.target.kernel, own_call, work);
    const std::string name(path.target.name);
    if (!leaves_zeros(work)) {
      outcome.finding = name + " left numbers where zeros are promised";
      return outcome;
    }
    if (first.has_value()) {
      if (!(output == *first)) {
        outcome.finding =
            name + " and " + std::string(paths_[0].target.name) + " differ: " +
            (output.selected == first->selected ? "what is kept"
                                                : "ids " + std::to_string(output.selected) +
                                                      " and " + std::to_string(first->selected));
        return outcome;
      }
      continue;
    }
    if (std::is_same_v<Call, SamplingCall> && output.status != row.status) {
      outcome.finding = name + " has the status " +
                        std::to_string(static_cast<int>(output.status)) + ", not " +
                        std::to_string(static_cast<int>(row.status));
      return outcome;
    }
    if (const std::string reason = judge_list(own_call, output); !reason.empty()) {
      outcome.finding = name + " is wrong: " + reason;
      return outcome;
    }
    const Verdict verdict = judge(row, oracle, of_token(call, output));
    outcome.kind = verdict.kind;
    // Section 7 forgives a tie between devices; here equal scores must go to the lowest place.
    if (verdict.kind == Kind::kFailed || verdict.kind == Kind::kTie) {
      outcome.finding = name + " is wrong: " + verdict.reason;
      return outcome;
    }
    first = output;
    outcome.digest = output.digest();
  }
  return outcome;
}

FuzzCase shrink(Fuzzer& fuzzer, FuzzCase smallest) {
  int left = kMostShrinks;
  const auto try_case = [&](const FuzzCase& smaller) {
    const bool still_shows = left-- > 0 && !fuzzer.check(smaller).finding.empty();
    smallest = still_shows ? smaller : smallest;
    return still_shows;
  };
  for (size_t length = smallest.logits.size() / 2; length > 0; length /= 2) {
    for (size_t start = 0; start + length <= smallest.logits.size();) {
      FuzzCase smaller = smallest;
      smaller.cut(start, length);
      if (smaller.logits.empty() || !try_case(smaller)) {
        start += length;
      }
    }
  }
  for (const auto simplify : kSimplifications) {
    FuzzCase smaller = smallest;
    simplify(smaller);
    try_case(smaller);
  }
  for (size_t lane = 0; lane < smallest.logits.size(); ++lane) {
    FuzzCase smaller = smallest;
    smaller.logits[lane] = 0;
    try_case(smaller);
    if (smallest.q.has_value()) {
      smaller = smallest;
      (*smaller.q)[lane] = 1.0F;
      try_case(smaller);
    }
  }
  return smallest;
}

}  // namespace ascend_sample::cpu::testing
