// The beginning and the end of the process: settings are read when the library is loaded; at exit
// the streams' threads are ended, leaks are looked for, and the report is written.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "runtime/activities.h"
#include "runtime/errors.h"
#include "runtime/faults.h"
#include "runtime/memory.h"
#include "runtime/settings.h"
#include "runtime/streams.h"

namespace hostcann::runtime {
namespace {

constexpr int kViolationsExitStatus = 97;
constexpr std::string_view kProcessMark = "%p";  // in the name of the report: the process's number

/// Only what a program must destroy itself: aclFinalize and torch's caches account for streams,
/// events and blocks.
void look_for_leaks() {
  for (auto [kind, name] : {std::pair{Live::kTensor, "aclTensor"},
                            {Live::kScalar, "aclScalar"},
                            {Live::kArray, "array"},
                            {Live::kTensorList, "list"}}) {
    if (int64_t count = live_count(kind); count > 0) {
      report_violation(Violation::kLeak,
                       std::to_string(count) + " x " + name + " left at the end of the process");
    }
  }
  if (int64_t count = live_count(Live::kExecutor); count > 0) {
    report_violation(Violation::kExecutorLeaked,
                     std::to_string(count) + " executors were never run nor destroyed");
  }
}

bool write_report_to(const std::string& path, int exit_status) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  std::fprintf(file,
               "{\"exit_status\": %d, \"violation_count\": %zu, \"violations\": %s, \"live\": %s, "
               "\"activities\": %s}\n",
               exit_status, violation_count(), violations_json().c_str(), live_json().c_str(),
               profile_json(kProcessProfile).c_str());
  bool is_whole = std::ferror(file) == 0;
  return std::fclose(file) == 0 && is_whole;
}

void write_report(int exit_status) {
  std::string path = settings().report_path;
  if (path.empty()) return;
  if (size_t mark = path.find(kProcessMark); mark != std::string::npos)
    path.replace(mark, kProcessMark.size(), std::to_string(getpid()));
  // A process that is killed meanwhile leaves no half of a report under its name. What is no file
  // of its own, such as /dev/stdout, has nothing put in its place.
  struct stat status;
  bool is_plain = lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
  std::string part = path + (is_plain ? ".part" : "");
  if (write_report_to(part, exit_status) &&
      (!is_plain || std::rename(part.c_str(), path.c_str()) == 0))
    return;
  if (is_plain) std::remove(part.c_str());
  std::fprintf(stderr, "hostcann: HOSTCANN_REPORT must name a file that can be written, got '%s'\n",
               path.c_str());
}

void at_exit(int exit_status, void* /*argument*/) {
  if (is_fork()) return;
  for (const std::shared_ptr<Stream>& stream : all_streams()) stream->stop(/*drain=*/false);
  check_red_zones();
  look_for_leaks();
  write_report(exit_status);
  size_t violations = violation_count();
  if (!settings().strict || violations == 0) return;
  std::fprintf(stderr, "hostcann: %zu violations of CANN's interface: %s\n", violations,
               violations_json().c_str());
  if (exit_status != 0) return;
  std::fflush(nullptr);
  _exit(kViolationsExitStatus);  // exit() cannot be called again from its own handlers
}

/// Registered when the library is loaded, so before those of the libraries that need it, and run
/// after them.
const bool registered = [] {
  settings();
  on_exit(at_exit, nullptr);
  return true;
}();

}  // namespace
}  // namespace hostcann::runtime

/// Writes the report as it is now: of a program that a signal may end once its interpreter has, as
/// Python has itself ended by an interrupt that nobody caught.
CANN_API void hostcann_write_report() {
  if (!hostcann::runtime::is_fork()) hostcann::runtime::write_report(0);
}
