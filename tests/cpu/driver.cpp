// Runs the kernel's core on a file of batches, without torch:
//
//     driver CAPABILITY THREADS MEMORY BATCHES RESULTS
//
// CAPABILITY  plain, neon, avx2, avx512; or oracle, for the naive implementation beside this file
// THREADS     among which the rows of each batch are divided
// MEMORY      together: as in the file; heap: each row in blocks of exactly its size; guarded: each
//             row against a page that must not be touched, before and behind it in turn
//
// Written are, of each batch, the int64 ids and, where asked for, the float32 kept logits.
// Exit status 3: the capability is not available here.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "batch_file.h"
#include "cpu/targets.h"
#include "oracle.h"
#include "placed_row.h"

namespace ascend_sample::cpu::testing {
namespace {

constexpr int kUsageStatus = 2;
constexpr int kUnavailableStatus = 3;

enum class Memory : uint8_t { kTogether, kHeap, kGuarded };

std::optional<Memory> memory_named(const std::string& name) {
  if (name == "together") return Memory::kTogether;
  if (name == "heap") return Memory::kHeap;
  if (name == "guarded") return Memory::kGuarded;
  return std::nullopt;
}

void sample_apart(const Kernel& kernel, const OperatorCall& call, int64_t first, int64_t last,
                  Memory memory, Scratch& scratch) {
  const auto vocab_size = static_cast<size_t>(call.logits.vocab_size);
  for (int64_t row = first; row < last; ++row) {
    const Placement placement = memory == Memory::kHeap ? Placement::kHeap
                                : row % 2 == 0          ? Placement::kBeforeGuard
                                                        : Placement::kBehindGuard;
    const PlacedRow<OperatorCall> placed(call, row, placement);
    kernel.sample(placed.call(), 0, 1, scratch);
    call.selected[row] = *placed.call().selected;
    std::copy(placed.call().kept.begin(), placed.call().kept.end(),
              call.kept.begin() + row * static_cast<int64_t>(call.kept.empty() ? 0 : vocab_size));
  }
}

/// Each thread has a scratch of its own, which it keeps from batch to batch.
void run(const Kernel& kernel, const OperatorCall& call, Memory memory,
         std::vector<Scratch>& scratches) {
  const auto threads = static_cast<int64_t>(scratches.size());
  const auto work = [&](int64_t thread) {
    const int64_t first = call.batch_size * thread / threads;
    const int64_t last = call.batch_size * (thread + 1) / threads;
    Scratch& scratch = scratches[static_cast<size_t>(thread)];
    if (memory == Memory::kTogether) {
      kernel.sample(call, first, last, scratch);
    } else {
      sample_apart(kernel, call, first, last, memory, scratch);
    }
  };
  std::vector<std::thread> others;
  for (int64_t thread = 1; thread < threads; ++thread) {
    others.emplace_back(work, thread);
  }
  work(0);
  for (std::thread& other : others) {
    other.join();
  }
}

void run_oracle(const OperatorCall& call) {
  for (int64_t index = 0; index < call.batch_size; ++index) {
    const Row row(call, index);
    const Oracle oracle(row);
    call.selected[index] = oracle.selected();
    if (!call.kept.empty()) {
      const auto kept = oracle.kept();
      std::copy(kept.begin(), kept.end(), call.kept.begin() + index * call.logits.vocab_size);
    }
  }
}

int drive(const std::string& name, size_t threads, Memory memory, const char* input_path,
          const char* output_path) {
  const Target* const target = find_target(name);
  const bool is_oracle = name == "oracle";
  if (!is_oracle && target == nullptr) {
    std::fprintf(stderr, "driver: capability \"%s\" is not available here\n", name.c_str());
    return kUnavailableStatus;
  }
  File input(input_path, "rb");
  File output(output_path, "wb");
  std::vector<Scratch> scratches(threads);
  for (int64_t left = read_batch_count(input); left > 0; --left) {
    StoredBatch stored = read_batch(input);
    const OperatorCall call = stored.call();
    if (is_oracle) {
      run_oracle(call);
    } else {
      run(*target->kernel, call, memory, scratches);
    }
    output.write(stored.selected.data(), stored.selected.size());
    output.write(stored.kept.data(), stored.kept.size());
  }
  output.close();
  return 0;
}

}  // namespace
}  // namespace ascend_sample::cpu::testing

int main(int argument_count, char** arguments) {
  using namespace ascend_sample::cpu::testing;
  const int threads = argument_count == 6 ? std::atoi(arguments[2]) : 0;
  const auto memory = argument_count == 6 ? memory_named(arguments[3]) : std::nullopt;
  if (threads < 1 || !memory.has_value()) {
    std::fprintf(stderr,
                 "usage: driver CAPABILITY THREADS together|heap|guarded BATCHES RESULTS\n");
    return kUsageStatus;
  }
  try {
    return drive(arguments[1], static_cast<size_t>(threads), *memory, arguments[4], arguments[5]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "driver: %s\n", error.what());
    return 1;
  }
}
