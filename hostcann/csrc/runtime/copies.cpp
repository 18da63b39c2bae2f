// Copies and fills. Addresses are checked when the copy runs, as a device's DMA engine would meet
// them.
#include <cstring>
#include <functional>
#include <string>

#include "runtime/activities.h"
#include "runtime/contexts.h"
#include "runtime/errors.h"
#include "runtime/faults.h"
#include "runtime/graph.h"
#include "runtime/memory.h"
#include "runtime/streams.h"

namespace hostcann {
namespace {

using runtime::fail;

/// aclrtMemcpyKind.
enum CopyKind { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kDefault };
constexpr const char* kCopyNames[] = {"h2h", "h2d", "d2h", "d2d"};

struct Copy {
  void* destination;
  const void* source;
  size_t bytes;
  bool to_device;
  bool from_device;
  bool pinned_destination;
  bool pinned_source;

  const char* name() const {
    return kCopyNames[from_device ? (to_device ? kDeviceToDevice : kDeviceToHost)
                                  : (to_device ? kHostToDevice : kHostToHost)];
  }

  runtime::Activity activity() const {
    const uint64_t moved = to_device && from_device ? bytes : 0;  // inside the device's memory
    return {runtime::Activity::Kind::kCopy, name(), {moved, moved}, bytes};
  }

  void run(const std::string& task) const {
    if (bytes == 0) return;
    const void* from = from_device ? resolve(source, bytes, task + ": source") : source;
    void* to = to_device ? resolve(destination, bytes, task + ": destination") : destination;
    // Pinned memory is read and written when the copy runs: it must not have been freed since the
    // call.
    if (pinned_source) check_pinned(source, task + ": source");
    if (pinned_destination) check_pinned(destination, task + ": destination");
    std::memmove(to, from, bytes);
  }

 private:
  void check_pinned(const void* address, const std::string& what) const {
    if (runtime::is_pinned(address, bytes)) return;
    std::string message = what + ": the pinned host memory was freed before the copy ran";
    report_violation(Violation::kFreedOperand, message);
    throw TaskError(kDeviceTaskFailed, message);
  }
};

int check_copy(const char* function, void* destination, size_t capacity, const void* source,
               size_t bytes, int kind, Copy* copy) {
  if (int status = runtime::check_usable(function)) return status;
  if (bytes > capacity) {
    return fail(function, kInvalidParam,
                "count must be at most destMax (" + std::to_string(capacity) + "), got " +
                    std::to_string(bytes));
  }
  if (bytes > 0 && (destination == nullptr || source == nullptr)) {
    return fail(function, kInvalidParam, "dst and src must not be null");
  }
  if (kind < kHostToHost || kind > kDefault) {
    return fail(function, runtime::kFeatureNotSupported,
                "kind " + std::to_string(kind) + " is not emulated");
  }
  bool to_device = runtime::is_device_address(destination);
  bool from_device = runtime::is_device_address(source);
  *copy = {destination,
           source,
           bytes,
           to_device,
           from_device,
           !to_device && runtime::is_pinned(destination, bytes),
           !from_device && runtime::is_pinned(source, bytes)};
  if (kind == kDefault || bytes == 0) return kSuccess;
  bool expects_to = kind == kHostToDevice || kind == kDeviceToDevice;
  bool expects_from = kind == kDeviceToHost || kind == kDeviceToDevice;
  if (to_device != expects_to || from_device != expects_from) {
    return fail(
        function, kInvalidParam,
        std::string("kind says ") + kCopyNames[kind] + ", but the addresses are " + copy->name());
  }
  return kSuccess;
}

int check_fill(const char* function, size_t capacity, size_t bytes) {
  if (int status = runtime::check_usable(function)) return status;
  if (bytes <= capacity) return kSuccess;
  return fail(function, kInvalidParam,
              "count must be at most maxCount (" + std::to_string(capacity) + "), got " +
                  std::to_string(bytes));
}

/// Runs `work` now, on the calling thread. CANN's blocking copies do not wait for streams; neither
/// do these.
int run_now(const char* function, const std::function<void()>& work) {
  if (int status = runtime::refuse_in_capture(function)) return status;
  if (int status = runtime::require_context(function).status) return status;
  if (int injected = runtime::take_call_fault("memcpy", function, runtime::kCopyFailed))
    return injected;
  runtime::count_synchronization("memcpy");
  try {
    runtime::TaskScope scope(function);
    work();
  } catch (const TaskError& error) {
    return set_error(kRuntimeParamInvalid, error.what());
  }
  return kSuccess;
}

runtime::Activity fill(const char* function, uint64_t bytes) {
  return {runtime::Activity::Kind::kFill, function, {0, bytes}};
}

/// Host memory that is not pinned cannot be read later: CANN then makes the asynchronous copy a
/// blocking one.
bool needs_waiting(const Copy& copy) {
  if (copy.bytes == 0) return false;
  return !(copy.from_device || copy.pinned_source) || !(copy.to_device || copy.pinned_destination);
}

}  // namespace
}  // namespace hostcann

using namespace hostcann;  // NOLINT: this file ends with CANN's C functions

CANN_API int aclrtMemcpy(void* destination, size_t capacity, const void* source, size_t bytes,
                         int kind) {
  Copy copy;
  if (int status = check_copy(__func__, destination, capacity, source, bytes, kind, &copy))
    return status;
  runtime::count(copy.activity(), find_caller());
  return run_now(__func__, [&copy] { copy.run("aclrtMemcpy"); });
}

CANN_API int aclrtMemcpyAsync(void* destination, size_t capacity, const void* source, size_t bytes,
                              int kind, void* stream_handle) {
  Copy copy;
  if (int status = check_copy(__func__, destination, capacity, source, bytes, kind, &copy))
    return status;
  const runtime::Found<runtime::Stream> stream = runtime::find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  if (int injected = runtime::take_call_fault("memcpy", __func__, runtime::kCopyFailed))
    return injected;
  bool waits = needs_waiting(copy);
  if (waits && stream->capture()) {
    stream->capture()->invalidate("aclrtMemcpyAsync on host memory that is not pinned");
    return fail(__func__, runtime::kStreamCaptured,
                "the stream is being captured, and a copy of host memory that is not pinned would "
                "block; pin it");
  }
  const int status = runtime::submit(
      __func__, *stream,
      {"aclrtMemcpyAsync", [copy] { copy.run("aclrtMemcpyAsync"); }, copy.activity()},
      find_caller());
  if (status != kSuccess || !waits) return status;
  return runtime::synchronize(__func__, "pageable_memcpy", *stream, -1);
}

CANN_API int aclrtMemset(void* device_pointer, size_t capacity, int32_t value, size_t bytes) {
  if (int status = check_fill(__func__, capacity, bytes)) return status;
  runtime::count(fill(__func__, bytes), find_caller());
  return run_now(__func__, [=] {
    std::memset(resolve(device_pointer, bytes, "aclrtMemset: devPtr"), value, bytes);
  });
}

CANN_API int aclrtMemsetAsync(void* device_pointer, size_t capacity, int32_t value, size_t bytes,
                              void* stream_handle) {
  if (int status = check_fill(__func__, capacity, bytes)) return status;
  const runtime::Found<runtime::Stream> stream = runtime::find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  return runtime::submit(__func__, *stream,
                         {"aclrtMemsetAsync",
                          [=] {
                            std::memset(resolve(device_pointer, bytes, "aclrtMemsetAsync: devPtr"),
                                        value, bytes);
                          },
                          fill(__func__, bytes)},
                         find_caller());
}
