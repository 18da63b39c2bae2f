// The device, its contexts, the life of the runtime. A process has one device, of whatever number
// it takes first; the programs that torchrun starts take one each.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/activities.h"
#include "runtime/contexts.h"
#include "runtime/errors.h"
#include "runtime/faults.h"
#include "runtime/graph.h"
#include "runtime/memory.h"
#include "runtime/settings.h"
#include "runtime/streams.h"

namespace hostcann {
namespace runtime {
namespace {

struct Device {
  std::mutex mutex;
  bool initialized = false;
  std::shared_ptr<Context> primary;
  void* primary_handle = nullptr;
  int users = 0;  // aclrtSetDevice minus aclrtResetDevice
};

Device& device() { return only<Device>(); }

HandleTable<Context>& contexts() { return only<HandleTable<Context>>(); }

thread_local void* current_handle = nullptr;

void close_context(const std::shared_ptr<Context>& context) {
  destroy_streams(*context);
  if (std::shared_ptr<Stream> stream = context->release_default_stream())
    stream->stop(/*drain=*/true);
}

/// Everything that the device holds goes, as with a reset of a real one.
void reset_device() {
  Device& all = device();
  std::shared_ptr<Context> context;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    context = std::move(all.primary);
    all.primary = nullptr;
    if (all.primary_handle != nullptr) contexts().remove(all.primary_handle);
    all.primary_handle = nullptr;
    all.users = 0;
  }
  if (!context) return;
  close_context(context);
  free_all_blocks();
}

int check_device(const char* function, int64_t number) {
  if (int status = check_usable(function)) return status;
  const int devices = settings().devices;
  if (number >= 0 && number < devices) return kSuccess;
  return fail(
      function, kInvalidDevice,
      "deviceId must be in [0, " + std::to_string(devices) + "), got " + std::to_string(number));
}

}  // namespace

std::shared_ptr<Stream> Context::default_stream() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!default_stream_) default_stream_ = make_stream(shared_from_this());
  return default_stream_;
}

std::shared_ptr<Stream> Context::existing_default_stream() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return default_stream_;
}

std::shared_ptr<Stream> Context::release_default_stream() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::move(default_stream_);
}

void Context::fail(Failure failure) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
}

Failure Context::report_failure() {
  if (!failed()) return {};
  std::lock_guard<std::mutex> lock(mutex_);
  reported_ = true;
  return failure_;
}

Failure Context::reported_failure() const {
  if (!failed()) return {};
  std::lock_guard<std::mutex> lock(mutex_);
  return reported_ ? failure_ : Failure{};
}

Found<Context> require_context(const char* function) {
  return find_handle(contexts(), current_handle, function, kContextNull,
                     "this thread has no context; call aclrtSetDevice first");
}

int finish_waiting(Context& context) {
  check_red_zones();
  const Failure failure = context.report_failure();
  return failure.code == kSuccess ? kSuccess : set_error(failure.code, failure.message);
}

std::vector<std::shared_ptr<Stream>> default_streams() {
  std::vector<std::shared_ptr<Stream>> all;
  for (const auto& entry : contexts().entries()) {
    if (std::shared_ptr<Stream> stream = entry.second->existing_default_stream())
      all.push_back(std::move(stream));
  }
  return all;
}

}  // namespace runtime
}  // namespace hostcann

using namespace hostcann;           // NOLINT: this file ends with CANN's C functions
using namespace hostcann::runtime;  // NOLINT

CANN_API int aclInit(const char* config_path) {
  if (int status = check_usable(__func__)) return status;
  if (config_path != nullptr && *config_path != '\0' && access(config_path, R_OK) != 0) {
    return fail(__func__, kInvalidFile, std::string("configPath cannot be read: ") + config_path);
  }
  {
    std::lock_guard<std::mutex> lock(device().mutex);
    if (device().initialized) return fail(__func__, kRepeatInitialize, "aclInit was called before");
    device().initialized = true;
  }
  run_startup();
  return kSuccess;
}

CANN_API int aclFinalize() {
  if (int status = check_usable(__func__)) return status;
  {
    std::lock_guard<std::mutex> lock(device().mutex);
    if (!device().initialized)
      return fail(__func__, kRepeatFinalize, "aclInit was not called, or aclFinalize was");
    device().initialized = false;
  }
  reset_device();
  return kSuccess;
}

CANN_API int aclrtGetDeviceCount(uint32_t* count) {
  if (int status = check_usable(__func__)) return status;
  if (count == nullptr) return fail(__func__, kInvalidParam, "count must not be null");
  *count = static_cast<uint32_t>(settings().devices);
  return kSuccess;
}

CANN_API int aclrtSetDevice(int32_t number) {
  if (int status = check_device(__func__, number)) return status;
  Device& all = device();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.initialized) return fail(__func__, kUninitialized, "call aclInit first");
  if (!all.primary) {
    all.primary = std::make_shared<Context>(number);
    all.primary_handle = contexts().add(all.primary);
  } else if (all.primary->device() != number) {
    return fail(__func__, kInvalidDevice,
                "deviceId must be " + std::to_string(all.primary->device()) +
                    ", which this process uses already, got " + std::to_string(number) +
                    "; hostcann emulates one device a process");
  }
  ++all.users;
  current_handle = all.primary_handle;
  return kSuccess;
}

CANN_API int aclrtGetDevice(int32_t* number) {
  if (number == nullptr) return fail(__func__, kInvalidParam, "deviceId must not be null");
  const Found<Context> context = require_context(__func__);
  if (!context) return context.status;
  *number = context->device();
  return kSuccess;
}

CANN_API int aclrtResetDevice(int32_t number) {
  if (int status = check_device(__func__, number)) return status;
  {
    std::lock_guard<std::mutex> lock(device().mutex);
    if (device().users > 1) {
      --device().users;
      return kSuccess;
    }
  }
  reset_device();
  return kSuccess;
}

CANN_API int aclrtResetDeviceForce(int32_t number) {
  if (int status = check_device(__func__, number)) return status;
  reset_device();
  return kSuccess;
}

CANN_API int aclrtCreateContext(void** context, int32_t number) {
  if (int status = check_device(__func__, number)) return status;
  if (context == nullptr) return fail(__func__, kInvalidParam, "context must not be null");
  *context = current_handle = contexts().add(std::make_shared<Context>(number));
  return kSuccess;
}

CANN_API int aclrtDestroyContext(void* context) {
  std::shared_ptr<Context> removed = contexts().remove(context);
  if (!removed) return fail(__func__, kInvalidHandle, "the context is gone, or never was one");
  close_context(removed);
  return kSuccess;
}

CANN_API int aclrtGetCurrentContext(void** context) {
  if (context == nullptr) return fail(__func__, kInvalidParam, "context must not be null");
  if (int status = require_context(__func__).status) return status;
  *context = current_handle;
  return kSuccess;
}

CANN_API int aclrtSetCurrentContext(void* context) {
  if (int status = check_usable(__func__)) return status;
  if (!contexts().find(context))
    return fail(__func__, kInvalidHandle, "the context is gone, or never was one");
  current_handle = context;
  return kSuccess;
}

CANN_API int aclrtGetPrimaryCtxState(int32_t number, uint32_t* flags, int32_t* active) {
  if (int status = check_device(__func__, number)) return status;
  if (active == nullptr) return fail(__func__, kInvalidParam, "active must not be null");
  if (flags != nullptr) *flags = 0;
  std::lock_guard<std::mutex> lock(device().mutex);
  *active = device().primary != nullptr;
  return kSuccess;
}

namespace {

int synchronize_device(const char* function, int timeout_ms) {
  if (int status = check_usable(function)) return status;
  const Found<Context> context = require_context(function);
  if (!context) return context.status;
  if (int refused = refuse_in_capture(function)) return refused;
  count_synchronization("device");
  if (int injected = take_call_fault("synchronize", function, kSchedulerError)) return injected;
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (const std::shared_ptr<Stream>& stream : all_streams()) {
    int left = timeout_ms;
    if (timeout_ms >= 0) {
      auto span = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      left = span.count() > 0 ? static_cast<int>(span.count()) : 0;
    }
    if (!stream->wait(stream->last_number(), left)) {
      return fail(function, kStreamSyncTimeout,
                  "the device was not done within " + std::to_string(timeout_ms) + " ms");
    }
  }
  return finish_waiting(*context);
}

}  // namespace

CANN_API int aclrtSynchronizeDevice() { return synchronize_device(__func__, -1); }

CANN_API int aclrtSynchronizeDeviceWithTimeout(int32_t timeout_ms) {
  if (timeout_ms < -1) {
    return fail(__func__, kInvalidParam,
                "timeout must be at least -1, got " + std::to_string(timeout_ms));
  }
  return synchronize_device(__func__, timeout_ms);
}
