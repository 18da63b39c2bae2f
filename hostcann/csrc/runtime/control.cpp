// The way in for tests and tools: hostcann_* functions, called through ctypes by
// hostcann. No CANN has them, so their presence also tells an emulated libascendcl.so
// from a real one.
#include <optional>
#include <string>
#include <utility>

#include "runtime/activities.h"
#include "runtime/errors.h"
#include "runtime/faults.h"
#include "runtime/memory.h"
#include "runtime/settings.h"
#include "runtime/streams.h"

using namespace hostcann;           // NOLINT: this file holds C functions only
using namespace hostcann::runtime;  // NOLINT

namespace {

/// A text that stays valid until the thread asks for the next one. The buffer is not freed with the
/// thread's objects: the last caller may be a destructor.
const char* keep(std::string text) {
  thread_local std::string* kept = nullptr;
  if (kept == nullptr) kept = new std::string;
  *kept = std::move(text);
  return kept->c_str();
}

}  // namespace

/// Empty, or what is wrong with the HOSTCANN_* variables.
CANN_API const char* hostcann_settings_error() { return keep(settings().error); }

/// Empty, or which argument breaks which rule.
CANN_API const char* hostcann_inject(const char* site, const char* name, int nth, int code,
                                     const char* message, int count) {
  return keep(inject(site, name, nth, code, message, count));
}

CANN_API void hostcann_clear_faults() { clear_faults(); }

/// 0, or -1 for a mode that there is not.
CANN_API int hostcann_set_stream_mode(const char* mode, int delay_ms) {
  std::optional<StreamMode> parsed = parse_stream_mode(mode);
  if (!parsed) return -1;
  set_stream_mode(*parsed, delay_ms);
  return 0;
}

CANN_API void hostcann_set_memory_capacity(uint64_t bytes) { set_memory_capacity(bytes); }
CANN_API uint64_t hostcann_memory_capacity() { return memory_capacity(); }
CANN_API void hostcann_set_null_kernels(int enabled) { set_null_kernels(enabled != 0); }
CANN_API int hostcann_null_kernels() { return null_kernels() ? 1 : 0; }

CANN_API const char* hostcann_violations() {
  check_red_zones();
  return keep(violations_json());
}

CANN_API void hostcann_reset_violations() { reset_violations(); }
CANN_API const char* hostcann_live() { return keep(live_json()); }

/// Profiles have numbers; 0 is that of the whole process.
CANN_API int hostcann_open_profile() { return open_profile(); }
CANN_API void hostcann_close_profile(int number) { close_profile(number); }
CANN_API const char* hostcann_profile(int number) { return keep(profile_json(number)); }
