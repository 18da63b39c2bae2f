// Random rows through every code path of the kernel, against one another and against the oracle.
//
//     fuzz --seconds 600            for so long
//     fuzz --rows 20000 --seed 1    so many rows, the same ones each time
//     fuzz --replay SEED            one row, as a finding names it
//
// A finding prints the seed of its row and the smallest row found that still shows it. An access
// outside a row's memory ends the run with the sanitizer's report, or a signal, and the seed; so
// does a row that is not done after half a minute (--row-seconds).
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpu/sample_rows.h"
#include "fuzz_case.h"
#include "oracle.h"
#include "placed_row.h"

namespace ascend_sample::cpu::testing {
namespace {

constexpr int kMostFindings = 5;
constexpr int kMostShrinks = 4000;

volatile uint64_t current_seed = 0;
unsigned most_seconds_for_a_row = 30;  // --row-seconds

/// Names the row on which the program dies, by a signal or through a sanitizer.
extern "C" void name_current_row() {
  char text[80];
  const int length =
      std::snprintf(text, sizeof(text), "\nfuzz: died, or hung, on the row of --replay %llu\n",
                    static_cast<unsigned long long>(current_seed));
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, static_cast<size_t>(length));
}

void end_hanging_row(int /*signal*/) {
  name_current_row();
  _exit(1);
}

struct Output {
  int64_t selected;
  std::vector<float> kept;
  std::vector<float> dense_weights;
  std::vector<int64_t> dense_ids;
  RowStatus status;
  bool leaves_zeros;  // in the table in which logits are counted

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

struct Outcome {
  std::string scenario;
  Kind kind;
  std::string finding;  // empty: none
};

class Fuzzer {
 public:
  Fuzzer() {
    for (const Capability capability : kCapabilities) {
      if (is_available(capability)) {
        paths_.push_back({capability, std::make_unique<Scratch>()});
      }
    }
  }

  std::string path_names() const {
    std::string names;
    for (const auto& path : paths_) {
      names += " " + std::string(name_of(path.capability));
    }
    return names;
  }

  Outcome check(const FuzzCase& fuzz_case) {
    alarm(most_seconds_for_a_row);
    const StoredCase stored(fuzz_case);
    const Row row(stored.batch(), 0);
    const Oracle oracle(row);
    Outcome outcome{oracle.scenario(), Kind::kExact, ""};
    std::optional<Output> first;
    for (const auto& path : paths_) {
      const Output output = run(path, fuzz_case, stored.batch());
      const std::string name(name_of(path.capability));
      if (!output.leaves_zeros) {
        outcome.finding = name + " left numbers in the table of counts";
        return outcome;
      }
      if (first.has_value()) {
        if (!(output == *first)) {
          outcome.finding =
              name + " and " + std::string(name_of(paths_[0].capability)) + " differ: " +
              (output.selected == first->selected ? "what is kept"
                                                  : "ids " + std::to_string(output.selected) +
                                                        " and " + std::to_string(first->selected));
          return outcome;
        }
        continue;
      }
      if (output.status != (row.is_request ? row.status : RowStatus::kOk)) {
        outcome.finding = name + " has the status " +
                          std::to_string(static_cast<int>(output.status)) + ", not " +
                          std::to_string(static_cast<int>(row.status));
        return outcome;
      }
      if (row.wants_distribution && output.selected != kNotSelected) {
        outcome.finding =
            name + " wrote the id " + std::to_string(output.selected) + " beside a distribution";
        return outcome;
      }
      const Verdict verdict = judge(row, oracle, output);
      outcome.kind = verdict.kind;
      // Section 7 forgives a tie between devices; here equal scores must go to the lowest place.
      if (verdict.kind == Kind::kFailed || verdict.kind == Kind::kTie) {
        outcome.finding = name + " is wrong: " + verdict.reason;
        return outcome;
      }
      first = output;
    }
    return outcome;
  }

 private:
  struct Path {
    Capability capability;
    std::unique_ptr<Scratch> scratch;
  };

  static Verdict judge(const Row& row, const Oracle& oracle, const Output& output) {
    const auto data_of = [](const auto& values) {
      return values.empty() ? nullptr : values.data();
    };
    return row.wants_distribution
               ? oracle.judge_distribution(output.kept.data())
               : oracle.judge(output.selected, data_of(output.kept), data_of(output.dense_weights),
                              data_of(output.dense_ids));
  }

  /// What earlier rows left in the scratch must not matter, but where they promise to leave zeros.
  static void litter(Scratch& scratch, size_t vocab_size, Capability capability) {
    const size_t bytes = 16 * vocab_size + 16'384;
    const int litter = static_cast<int>(capability) % 2 == 0 ? 0xFF : 0x42;
    for (int slot = 0; slot < Scratch::kTally; ++slot) {
      std::memset(scratch.reserve(static_cast<Scratch::Slot>(slot), bytes), litter, bytes);
    }
  }

  static bool leaves_zeros(Scratch& scratch) {
    const std::span<const std::byte> table = scratch.held(Scratch::kTally);
    return std::all_of(table.begin(), table.end(), [](std::byte b) { return b == std::byte{0}; });
  }

  static Output run(const Path& path, const FuzzCase& fuzz_case, const Batch& batch) {
    const PlacedRow placed(batch, 0, fuzz_case.placement);
    Scratch new_scratch;
    Scratch& scratch = fuzz_case.has_used_scratch ? *path.scratch : new_scratch;
    if (fuzz_case.has_used_scratch) {
      litter(scratch, fuzz_case.logits.size(), path.capability);
    }
    // What is tried first must not matter: each path tries another way first.
    const int path_number = static_cast<int>(path.capability);
    scratch.history = fuzz_case.history;
    scratch.history.first_try =
        static_cast<History::FirstTry>((fuzz_case.history.first_try + path_number) % 3);
    scratch.history.depth += path_number;
    if (batch.sampling != nullptr) {
      *batch.sampling->status = RowStatus{-1};  // has to be written
    }
    sample_rows(path.capability, placed.batch(), 0, 1, scratch);
    const RowStatus status = batch.sampling == nullptr ? RowStatus::kOk : *batch.sampling->status;
    Output output{*placed.batch().selected, {}, {}, {}, status, leaves_zeros(scratch)};
    if (fuzz_case.is_need_logits) {
      output.kept.assign(placed.batch().kept, placed.batch().kept + batch.vocab_size);
    }
    if (fuzz_case.is_need_sample_result) {
      const Batch& result = placed.batch();
      output.dense_weights.assign(result.dense_weights, result.dense_weights + batch.vocab_size);
      output.dense_ids.assign(result.dense_ids, result.dense_ids + batch.vocab_size);
    }
    return output;
  }

  std::vector<Path> paths_;
};

/// The smallest case found that still is a finding.
FuzzCase shrink(Fuzzer& fuzzer, FuzzCase smallest) {
  int left = kMostShrinks;
  const auto try_case = [&](const FuzzCase& smaller) {
    if (left <= 0) {
      return false;
    }
    --left;
    if (fuzzer.check(smaller).finding.empty()) {
      return false;
    }
    smallest = smaller;
    return true;
  };
  for (size_t length = smallest.logits.size() / 2; length > 0; length /= 2) {
    for (size_t start = 0; start + length <= smallest.logits.size();) {
      FuzzCase smaller = smallest;
      const auto cut = [start, length](auto& values) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(start);
        values.erase(begin, begin + static_cast<std::ptrdiff_t>(length));
      };
      cut(smaller.logits);
      if (smaller.q.has_value()) {
        cut(*smaller.q);
      }
      if (smaller.logits.empty() || !try_case(smaller)) {
        start += length;
      }
    }
  }
  const auto try_change = [&](auto change) {
    FuzzCase smaller = smallest;
    change(smaller);
    try_case(smaller);
  };
  try_change([](FuzzCase& smaller) { smaller.logits_stride = smaller.q_stride = 1; });
  try_change([](FuzzCase& smaller) { smaller.is_need_logits = smaller.wants_distribution(); });
  try_change([](FuzzCase& smaller) { smaller.q.reset(); });
  try_change([](FuzzCase& smaller) { smaller.is_need_sample_result = false; });
  try_change([](FuzzCase& smaller) { smaller.min_p.reset(); });
  try_change([](FuzzCase& smaller) { smaller.are_probabilities = false; });
  try_change([](FuzzCase& smaller) {
    smaller.is_second = smaller.are_probabilities = smaller.is_need_sample_result = false;
    smaller.most_k = kMaxTopK;
    smaller.min_p.reset();
    smaller.request.reset();
  });
  try_change([](FuzzCase& smaller) {
    if (smaller.wants_distribution()) {
      smaller.request->wants_distribution = smaller.is_need_logits = false;
    }
  });
  try_change([](FuzzCase& smaller) {
    if (smaller.request.has_value()) {
      smaller.request->temperature = 1.0F;
    }
  });
  try_change([](FuzzCase& smaller) {
    if (smaller.request.has_value()) {
      smaller.request->p = 1.0F;
    }
  });
  try_change([](FuzzCase& smaller) {
    if (smaller.request.has_value()) {
      smaller.request->min_p = 0.0F;
    }
  });
  try_change([](FuzzCase& smaller) { smaller.eps = 0.0F; });
  for (size_t lane = 0; lane < smallest.logits.size(); ++lane) {
    try_change([lane](FuzzCase& smaller) { smaller.logits[lane] = 0; });
    if (smallest.q.has_value()) {
      try_change([lane](FuzzCase& smaller) { (*smaller.q)[lane] = 1.0F; });
    }
  }
  return smallest;
}

class Tally {
 public:
  void add(const Outcome& outcome) {
    ++rows_;
    ++counts_[outcome.scenario][static_cast<size_t>(outcome.kind)];
  }

  int64_t rows() const { return rows_; }

  void print() const {
    std::printf("%-16s", "scenario");
    for (const char* name : kKindNames) {
      std::printf("%15s", name);
    }
    std::printf("\n");
    for (const auto& [scenario, counts] : counts_) {
      std::printf("%-16s", scenario.c_str());
      for (const int64_t count : counts) {
        std::printf("%15lld", static_cast<long long>(count));
      }
      std::printf("\n");
    }
  }

 private:
  int64_t rows_ = 0;
  std::map<std::string, std::array<int64_t, std::size(kKindNames)>> counts_;
};

void report(Fuzzer& fuzzer, uint64_t seed, const FuzzCase& fuzz_case, const std::string& finding) {
  std::printf("\nFINDING on the row of --replay %llu: %s\n%s",
              static_cast<unsigned long long>(seed), finding.c_str(), fuzz_case.describe().c_str());
  const FuzzCase smallest = shrink(fuzzer, fuzz_case);
  std::printf("cut down: %s\n%s", fuzzer.check(smallest).finding.c_str(),
              smallest.describe().c_str());
  std::fflush(stdout);
}

struct Options {
  double seconds = 0;
  int64_t rows = 0;
  std::optional<uint64_t> seed;
  std::optional<uint64_t> replay;
};

int fuzz(const Options& options) {
  using Clock = std::chrono::steady_clock;
  Fuzzer fuzzer;
  const uint64_t first_seed =
      options.seed.has_value() ? *options.seed << 32 : (uint64_t{std::random_device{}()} << 32);
  std::printf("fuzz: code paths%s; seed %llu\n", fuzzer.path_names().c_str(),
              static_cast<unsigned long long>(first_seed >> 32));
  std::fflush(stdout);
  Tally tally;
  int findings = 0;
  const auto started = Clock::now();
  const auto elapsed = [started] {
    return std::chrono::duration<double>(Clock::now() - started).count();
  };
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  double next_progress = is_terminal ? 0 : 30;
  while (findings < kMostFindings && (options.rows == 0 || tally.rows() < options.rows) &&
         (options.seconds == 0 || elapsed() < options.seconds)) {
    const uint64_t seed = first_seed + static_cast<uint64_t>(tally.rows());
    current_seed = seed;
    const FuzzCase fuzz_case = make_case(seed);
    const Outcome outcome = fuzzer.check(fuzz_case);
    tally.add(outcome);
    if (!outcome.finding.empty()) {
      ++findings;
      report(fuzzer, seed, fuzz_case, outcome.finding);
    }
    if (elapsed() >= next_progress) {
      next_progress = elapsed() + (is_terminal ? 0.5 : 30);
      std::fprintf(stderr, "%s%6.0f s %10lld rows %3d findings%s", is_terminal ? "\r" : "",
                   elapsed(), static_cast<long long>(tally.rows()), findings,
                   is_terminal ? " " : "\n");
    }
  }
  std::printf("\n%lld rows in %.0f s, %d findings\n", static_cast<long long>(tally.rows()),
              elapsed(), findings);
  tally.print();
  return findings == 0 ? 0 : 1;
}

int replay(uint64_t seed) {
  Fuzzer fuzzer;
  current_seed = seed;
  const FuzzCase fuzz_case = make_case(seed);
  std::printf("%s", fuzz_case.describe().c_str());
  const Outcome outcome = fuzzer.check(fuzz_case);
  std::printf("%s: %s\n", outcome.scenario.c_str(), kKindNames[static_cast<size_t>(outcome.kind)]);
  if (!outcome.finding.empty()) {
    report(fuzzer, seed, fuzz_case, outcome.finding);
  }
  return outcome.finding.empty() ? 0 : 1;
}

}  // namespace
}  // namespace ascend_sample::cpu::testing

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

int main(int argument_count, char** arguments) {
  using namespace ascend_sample::cpu::testing;
  Options options;
  for (int index = 1; index + 1 < argument_count; index += 2) {
    const std::string name = arguments[index];
    const char* value = arguments[index + 1];
    if (name == "--seconds") {
      options.seconds = std::atof(value);
    } else if (name == "--rows") {
      options.rows = std::atoll(value);
    } else if (name == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--row-seconds") {
      most_seconds_for_a_row = static_cast<unsigned>(std::atoi(value));
    } else if (name == "--replay") {
      options.replay = std::strtoull(value, nullptr, 10);
    }
  }
  if (!options.replay.has_value() && options.seconds <= 0 && options.rows <= 0) {
    std::fprintf(stderr,
                 "usage: fuzz (--seconds N | --rows N) [--seed N], or fuzz --replay SEED\n");
    return 2;
  }
  std::signal(SIGALRM, end_hanging_row);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(name_current_row);
  } else {
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL}) {
      std::signal(signal, [](int number) {
        name_current_row();
        std::signal(number, SIG_DFL);
        std::raise(number);
      });
    }
  }
  return options.replay.has_value() ? replay(*options.replay) : fuzz(options);
}
