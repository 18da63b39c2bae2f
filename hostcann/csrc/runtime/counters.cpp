// Violations, and how many objects are alive.
#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/faults.h"

namespace hostcann {
namespace {

constexpr size_t kLiveKinds = static_cast<size_t>(Live::kCount);
constexpr std::array<const char*, kLiveKinds> kLiveNames = {
    "tensor", "scalar", "array", "tensor_list", "executor",
    "stream", "event",  "block", "host_block"};
constexpr std::array<const char*, 12> kViolationNames = {"executor_reused",
                                                         "executor_leaked",
                                                         "tensor_destroyed_twice",
                                                         "tensor_destroyed_early",
                                                         "freed_operand",
                                                         "out_of_range_operand",
                                                         "workspace_undersized",
                                                         "workspace_overrun",
                                                         "misaligned",
                                                         "dead_stream",
                                                         "leak",
                                                         "collective_mismatch"};
constexpr size_t kMostViolationsKept =
    1000;  // a loop that goes wrong must not fill the memory; all are counted

struct ViolationRecord {
  Violation kind;
  std::string message;
};

struct Counters {
  std::mutex mutex;
  std::vector<ViolationRecord> violations;
  size_t violation_count = 0;
};

Counters& counters() { return only<Counters>(); }

std::array<std::atomic<int64_t>, kLiveKinds> live_counts{};
std::atomic<bool> null_kernels_enabled{false};

}  // namespace

void report_violation(Violation kind, const std::string& message) {
  Counters& all = counters();
  std::lock_guard<std::mutex> lock(all.mutex);
  ++all.violation_count;
  if (all.violations.size() < kMostViolationsKept) all.violations.push_back({kind, message});
}

void count_live(Live kind, int change) {
  live_counts[static_cast<size_t>(kind)].fetch_add(change, std::memory_order_relaxed);
}

namespace runtime {

bool null_kernels() { return null_kernels_enabled.load(std::memory_order_relaxed); }

void set_null_kernels(bool enabled) {
  null_kernels_enabled.store(enabled, std::memory_order_relaxed);
}

int64_t live_count(Live kind) {
  return live_counts[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
}

void reset_violations() {
  Counters& all = counters();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.violations.clear();
  all.violation_count = 0;
}

size_t violation_count() {
  std::lock_guard<std::mutex> lock(counters().mutex);
  return counters().violation_count;
}

std::string violations_json() {
  Counters& all = counters();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::string text = "[";
  for (const ViolationRecord& violation : all.violations) {
    if (text.size() > 1) text += ", ";
    text += std::string("{\"kind\": \"") + kViolationNames[static_cast<size_t>(violation.kind)] +
            "\", \"message\": " + quote_json(violation.message) + "}";
  }
  return text + "]";
}

std::string live_json() {
  std::string text = "{";
  for (size_t kind = 0; kind < kLiveKinds; ++kind) {
    if (kind > 0) text += ", ";
    text += std::string("\"") + kLiveNames[kind] +
            "\": " + std::to_string(live_count(static_cast<Live>(kind)));
  }
  return text + "}";
}

std::string quote_json(const std::string& text) {
  std::string quoted = "\"";
  for (char character : text) {
    if (character == '"' || character == '\\') {
      quoted += std::string("\\") + character;
    } else if (static_cast<unsigned char>(character) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(character));
      quoted += escape;
    } else {
      quoted += character;
    }
  }
  return quoted + "\"";
}

}  // namespace runtime
}  // namespace hostcann
