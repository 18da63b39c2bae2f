// Statuses and messages: one message per thread, gone once it has been read.
#include "runtime/errors.h"

#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "runtime/settings.h"

namespace hostcann {
namespace {

constexpr size_t kLongestMessage = 4096;

/// Has no destructor: other libraries' static destructors still call CANN when this thread's
/// objects are gone.
struct ThreadError {
  int code;
  char message[kLongestMessage];
  char read[kLongestMessage];  // what aclGetRecentErrMsg returned, valid until it is called again
};

thread_local ThreadError thread_error;

std::atomic<bool> forked{false};

const bool fork_is_noticed = [] {
  pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  return true;
}();

}  // namespace

int set_error(int code, const std::string& message) {
  thread_error.code = code;
  std::snprintf(thread_error.message, kLongestMessage, "%s", message.c_str());
  return code;
}

namespace runtime {

int fail(const char* function, int code, const std::string& message) {
  return set_error(code, std::string(function) + ": " + message);
}

int not_emulated(const char* function) {
  return fail(function, kFeatureNotSupported,
              "hostcann does not emulate this function; see hostcann/csrc/README.md");
}

bool is_fork() { return forked.load(std::memory_order_relaxed); }

int check_usable(const char* function) {
  if (is_fork()) {
    return fail(
        function, kInternalError,
        "the process was forked after the runtime had been loaded; start it with spawn instead");
  }
  if (!settings().error.empty()) return fail(function, kInvalidParam, settings().error);
  return kSuccess;
}

}  // namespace runtime
}  // namespace hostcann

/// Never null: torch_npu puts the result into an output stream unseen.
CANN_API const char* aclGetRecentErrMsg() {
  using hostcann::thread_error;
  std::memcpy(thread_error.read, thread_error.message, sizeof(thread_error.read));
  thread_error.message[0] = '\0';
  return thread_error.read;
}

/// CANN has one level, the thread's.
CANN_API int aclrtPeekAtLastError(int /*level*/) { return hostcann::thread_error.code; }

CANN_API int aclrtGetLastError(int level) {
  int code = aclrtPeekAtLastError(level);
  hostcann::thread_error.code = hostcann::kSuccess;
  return code;
}
