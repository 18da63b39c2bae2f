// Random rows through every code path of the kernel, against one another and against the oracle.
//
//     fuzz --seconds 600            for so long
//     fuzz --rows 20000 --seed 1    so many rows, the same ones each time
//     fuzz --replay SEED            one row, as a finding names it
//     fuzz --rows N --threads 2     each row on so many threads at about the same time
//
// At the end stand hashes of all rows and of their results, which are the same on every machine.
// A finding prints the seed of its row and the smallest row found that still shows it. An access
// outside a row's memory ends the run with the sanitizer's report, or a signal, and the seed; so
// does a row that is not done after half a minute (--row-seconds).
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "fuzz_case.h"
#include "fuzzer.h"
#include "oracle.h"

namespace ascend_sample::cpu::testing {
namespace {

constexpr int kMostFindings = 5;

thread_local volatile uint64_t current_seed = 0;
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

class Tally {
 public:
  void add(const FuzzCase& row, const Outcome& outcome) {
    ++rows_;
    of_rows_ = hashed(of_rows_, row.logits.data(), row.logits.size() * sizeof(uint32_t));
    if (row.q.has_value()) {
      of_rows_ = hashed(of_rows_, row.q->data(), row.q->size() * sizeof(float));
    }
    of_results_ = hashed(of_results_, &outcome.digest, sizeof(outcome.digest));
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
    std::printf("hash of rows %016llx, of results %016llx\n",
                static_cast<unsigned long long>(of_rows_),
                static_cast<unsigned long long>(of_results_));
  }

 private:
  int64_t rows_ = 0;
  uint64_t of_rows_ = 0;
  uint64_t of_results_ = 0;
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
  int threads = 1;
};

int fuzz(const Options& options) {
  using Clock = std::chrono::steady_clock;
  Fuzzer fuzzer(most_seconds_for_a_row);
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
    tally.add(fuzz_case, outcome);
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

/// The same rows on each thread.
int fuzz_on_threads(const Options& options, int threads) {
  if (threads == 1) {
    return fuzz(options);
  }
  int status = 0;
  std::thread other([&] { status = fuzz_on_threads(options, threads - 1); });
  const int own = fuzz(options);
  other.join();
  return std::max(own, status);
}

int replay(uint64_t seed) {
  Fuzzer fuzzer(most_seconds_for_a_row);
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
    } else if (name == "--threads") {
      options.threads = std::max(1, std::atoi(value));
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
  return options.replay.has_value() ? replay(*options.replay)
                                    : fuzz_on_threads(options, options.threads);
}
