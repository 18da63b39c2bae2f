// What a program asked of the device: launches, copies, fills, waits and replays, by the line of
// the program. Everything is added to every profile that is open; one is open from the beginning to
// the end of the process.
#include "runtime/activities.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/faults.h"
#include "runtime/streams.h"

namespace hostcann::runtime {
namespace {

constexpr std::array<const char*, 6> kKindNames = {"launch", "copy",   "fill",
                                                   "wait",   "replay", "replayed"};

struct Totals {
  uint64_t count = 0;
  uint64_t read = 0;
  uint64_t written = 0;
  uint64_t copied = 0;
  int64_t memory = 0;  // the most that was in use
};

/// By line, kind and name.
using Profile = std::map<std::tuple<int64_t, Activity::Kind, std::string>, Totals>;

struct Profiles {
  std::mutex mutex;
  std::map<int, Profile> open{{kProcessProfile, {}}};
  int next = kProcessProfile + 1;
  bool program_has_ended = false;
};

Profiles& profiles() { return only<Profiles>(); }

}  // namespace

void count(const Activity& activity, const Caller& caller) {
  Profiles& all = profiles();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.program_has_ended) return;
  for (auto& entry : all.open) {
    Totals& totals = entry.second[{caller.line, activity.kind, activity.name}];
    ++totals.count;
    totals.read += activity.traffic.read;
    totals.written += activity.traffic.written;
    totals.copied += activity.copied;
    totals.memory = std::max(totals.memory, caller.memory);
  }
}

void count_synchronization(const char* kind) {
  count({Activity::Kind::kWait, kind}, find_waiting_caller());
}

void count_replay(const std::vector<std::shared_ptr<const Task>>& tasks) {
  const Caller caller = find_caller();
  count({Activity::Kind::kReplay, "aclmdlRIExecuteAsync"}, caller);
  for (const std::shared_ptr<const Task>& task : tasks) {
    if (!task->activity) continue;
    Activity activity = *task->activity;
    if (activity.kind == Activity::Kind::kLaunch) activity.kind = Activity::Kind::kReplayed;
    count(activity, caller);
  }
}

void end_counting() {
  std::lock_guard<std::mutex> lock(profiles().mutex);
  profiles().program_has_ended = true;
}

bool is_profiling() {
  std::lock_guard<std::mutex> lock(profiles().mutex);
  return profiles().open.size() > 1;
}

int open_profile() {
  std::lock_guard<std::mutex> lock(profiles().mutex);
  const int number = profiles().next++;
  profiles().open[number];
  return number;
}

void close_profile(int number) {
  std::lock_guard<std::mutex> lock(profiles().mutex);
  profiles().open.erase(number);
}

std::string profile_json(int number) {
  std::string text = "[";
  std::lock_guard<std::mutex> lock(profiles().mutex);
  const auto found = profiles().open.find(number);
  if (found == profiles().open.end()) return "[]";
  for (const auto& [key, totals] : found->second) {
    const auto& [line, kind, name] = key;
    if (text.size() > 1) text += ", ";
    text += "{" + line_json(line) + ", \"kind\": \"" + kKindNames[static_cast<size_t>(kind)] +
            "\", \"name\": " + quote_json(name) + ", \"count\": " + std::to_string(totals.count) +
            ", \"read\": " + std::to_string(totals.read) +
            ", \"written\": " + std::to_string(totals.written) +
            ", \"copied\": " + std::to_string(totals.copied) +
            ", \"memory\": " + std::to_string(totals.memory) + "}";
  }
  return text + "]";
}

}  // namespace hostcann::runtime
