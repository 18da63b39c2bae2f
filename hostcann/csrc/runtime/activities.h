// What a program asks of the device, and which line of it asks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hostcann/hostcann.h"

namespace hostcann::runtime {

/// Something that the host asked of the device, and that is counted.
struct Activity {
  enum class Kind { kLaunch, kCopy, kFill, kWait, kReplay, kReplayed };
  Kind kind;
  std::string name;  // the operator, the direction of a copy, what was waited for
  Traffic traffic{};
  uint64_t copied = 0;
};

struct Task;

void count(const Activity& activity, const Caller& caller);

/// The host waits: for "stream", "device", "event", "memcpy" or "pageable_memcpy".
void count_synchronization(const char* kind);
void end_counting();  // nothing is counted from now on
void count_replay(const std::vector<std::shared_ptr<const Task>>& tasks);

/// A profile has what is counted from its opening to its closing.
inline constexpr int kProcessProfile = 0;
int open_profile();
bool is_profiling();  // by more than the profile of the process
void close_profile(int number);
std::string profile_json(int number);

/// find_caller() of a thread that may hold torch_npu's locks, without the memory.
Caller find_waiting_caller();
/// "file" and "line", as members of an object.
std::string line_json(int64_t number);
/// Runs the line of Python in HOSTCANN_STARTUP, in a Python program.
void run_startup();

}  // namespace hostcann::runtime
