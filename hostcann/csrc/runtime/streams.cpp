// Streams: a queue and a thread each. Three modes for all of them, to bring out missing
// synchronisation: normal (at once), delayed (each task waits first), lazy (nothing runs until
// something synchronises).
#include "runtime/streams.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/activities.h"
#include "runtime/contexts.h"
#include "runtime/errors.h"
#include "runtime/faults.h"
#include "runtime/graph.h"
#include "runtime/memory.h"
#include "runtime/settings.h"

namespace hostcann {
namespace runtime {
namespace {

struct Mode {
  std::atomic<StreamMode> mode{StreamMode::kNormal};
  std::atomic<int> delay_ms{0};
};
Mode current_mode;

std::atomic<int> next_stream_id{0};

constexpr std::chrono::milliseconds kLaziness{50};  // of a collective on a lazy stream

Found<Stream> living(const char* function, std::shared_ptr<Stream> stream) {
  if (stream) return {std::move(stream), kSuccess};
  const char* message = "the stream is gone, or never was one";
  report_violation(Violation::kDeadStream, std::string(function) + ": " + message);
  return {nullptr, fail(function, kStreamContext, message)};
}

}  // namespace

HandleTable<Stream>& streams() { return only<HandleTable<Stream>>(); }

Stream::~Stream() { stop(false); }

uint64_t Stream::enqueue(const std::vector<std::shared_ptr<const Task>>& tasks) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (draining_ || stopping_) return 0;
  if (!thread_.joinable()) thread_ = std::thread(&Stream::work, this);
  for (const auto& task : tasks) {
    queue_.push_back(task);
    ++submitted_;
    if (!task->is_collective) continue;
    promised_ = submitted_;
    promised_at_ = std::chrono::steady_clock::now() + kLaziness;
  }
  work_available_.notify_one();
  return submitted_;
}

void Stream::permit(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  permitted_ = std::max(permitted_, number);
  work_available_.notify_one();
}

bool Stream::wait(uint64_t number, int timeout_ms) {
  permit(number);
  std::unique_lock<std::mutex> lock(mutex_);
  auto finished = [this, number] { return completed_ >= number || stopped_; };
  if (timeout_ms < 0) {
    work_done_.wait(lock, finished);
    return true;
  }
  return work_done_.wait_for(lock, std::chrono::milliseconds(timeout_ms), finished);
}

uint64_t Stream::last_number() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return submitted_;
}

bool Stream::idle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ == submitted_ || stopped_;
}

void Stream::wake() {
  std::lock_guard<std::mutex> lock(mutex_);
  work_available_.notify_one();
}

void Stream::stop(bool drain) {
  std::thread thread;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
    if (!drain) stopping_ = true;
    work_available_.notify_one();
    thread.swap(thread_);
  }
  wake_event_waits();
  if (thread.joinable()) thread.join();
  std::deque<std::shared_ptr<const Task>> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;
  stopped_ = true;
  dropped.swap(queue_);
  work_done_.notify_all();
}

std::shared_ptr<Graph> Stream::capture() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return capture_;
}

void Stream::set_capture(std::shared_ptr<Graph> graph) {
  std::lock_guard<std::mutex> lock(mutex_);
  capture_ = std::move(graph);
}

std::shared_ptr<TaskGroup> Stream::task_group() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return task_group_;
}

void Stream::set_task_group(std::shared_ptr<TaskGroup> group) {
  std::lock_guard<std::mutex> lock(mutex_);
  task_group_ = std::move(group);
}

bool Stream::may_run() const {
  if (queue_.empty()) return false;
  return draining_ || completed_ < permitted_ || current_mode.mode.load() != StreamMode::kLazy;
}

template <typename Condition>
void Stream::wait_for_work(std::unique_lock<std::mutex>& lock, Condition condition) {
  while (!condition()) {
    if (promised_ <= permitted_) {
      work_available_.wait(lock);
    } else if (work_available_.wait_until(lock, promised_at_) == std::cv_status::timeout) {
      permitted_ = std::max(permitted_, promised_);  // somebody may have waited for more meanwhile
    }
  }
}

void Stream::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wait_for_work(lock, [this] { return stopping_ || may_run() || (draining_ && queue_.empty()); });
    if (stopping_ || queue_.empty()) return;
    if (current_mode.mode.load() == StreamMode::kDelayed) {
      work_available_.wait_for(lock, std::chrono::milliseconds(current_mode.delay_ms.load()),
                               [this] { return stopping_.load(); });
      if (stopping_) return;
    }
    std::shared_ptr<const Task> task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    run(*task);
    task.reset();  // what it owns goes before its completion is seen
    lock.lock();
    ++completed_;
    work_done_.notify_all();
  }
}

void Stream::run(const Task& task) {
  if (context_->failed() && !task.after_failure) return;
  if (task.is_kernel) {
    if (auto fault = take_injected_fault("task", task.name)) {
      context_->fail(
          {fault->code == 0 ? kDeviceTaskFailed : fault->code, task.name + ": " + fault->message});
      return;
    }
  }
  TaskScope scope(task.name);
  try {
    task.run();
  } catch (const TaskError& error) {
    context_->fail({error.code, task.name + ": " + error.what()});
  } catch (const std::exception& error) {
    context_->fail({kDeviceTaskFailed, task.name + ": " + error.what()});
  }
}

std::shared_ptr<Stream> make_stream(std::shared_ptr<Context> context) {
  return std::make_shared<Stream>(std::move(context), next_stream_id.fetch_add(1));
}

Found<Stream> find_stream(const char* function, void* handle) {
  if (int status = check_usable(function)) return {nullptr, status};
  if (handle != nullptr) return living(function, streams().find(handle));
  const Found<Context> context = require_context(function);
  return {context ? context->default_stream() : nullptr, context.status};
}

int submit(const char* function, Stream& stream, Task task, const Caller& caller) {
  const bool dropped = task.is_kernel && null_kernels();
  std::shared_ptr<Graph> graph = stream.capture();
  const std::shared_ptr<TaskGroup> updated = graph ? nullptr : stream.task_group();
  if (!graph && !updated && task.activity) count(*task.activity, caller);
  if (dropped) return kSuccess;
  if (updated) {
    updated->offer(std::move(task));
    return kSuccess;
  }
  if (graph) return graph->append(function, stream, std::move(task));
  Failure failure = stream.context()->reported_failure();
  if (failure.code != kSuccess) {
    return fail(function, failure.code,
                "the context has failed before and takes no more work: " + failure.message);
  }
  if (stream.enqueue({std::make_shared<const Task>(std::move(task))}) == 0) {
    return fail(function, kStreamContext, "the stream is being destroyed");
  }
  return kSuccess;
}

int synchronize(const char* function, const char* kind, Stream& stream, int timeout_ms) {
  if (std::shared_ptr<Graph> graph = stream.capture()) {
    graph->invalidate(std::string(function) + " on a stream that is being captured");
    return fail(function, kStreamCaptured,
                "the stream is being captured, and what is captured has not run");
  }
  count_synchronization(kind);
  if (int injected = take_call_fault("synchronize", function, kSchedulerError)) return injected;
  if (!stream.wait(stream.last_number(), timeout_ms)) {
    return fail(function, kStreamSyncTimeout,
                "the stream was not done within " + std::to_string(timeout_ms) + " ms");
  }
  return finish_waiting(*stream.context());
}

std::vector<std::shared_ptr<Stream>> all_streams() {
  std::vector<std::shared_ptr<Stream>> all = default_streams();
  for (const auto& entry : streams().entries()) all.push_back(entry.second);
  return all;
}

void destroy_streams(const Context& context) {
  for (const auto& [handle, stream] : streams().entries()) {
    if (stream->context().get() != &context || !streams().remove(handle)) continue;
    stream->stop(/*drain=*/true);
    count_live(Live::kStream, -1);
  }
}

void set_stream_mode(StreamMode mode, int delay_ms) {
  current_mode.delay_ms.store(delay_ms);
  current_mode.mode.store(mode);
  for (const std::shared_ptr<Stream>& stream : all_streams()) stream->wake();
}

}  // namespace runtime

int launch(void* stream_handle, const std::string& name, std::function<void()> kernel,
           const Traffic& traffic, const Caller& caller, bool is_collective) {
  const runtime::Found<runtime::Stream> stream = runtime::find_stream(name.c_str(), stream_handle);
  if (!stream) return stream.status;
  return runtime::submit(
      name.c_str(), *stream,
      {.name = name,
       .run = std::move(kernel),
       .activity = runtime::Activity{runtime::Activity::Kind::kLaunch, name, traffic},
       .is_kernel = true,
       .is_collective = is_collective},
      caller);
}

}  // namespace hostcann

using namespace hostcann;           // NOLINT: this file ends with CANN's C functions
using namespace hostcann::runtime;  // NOLINT

namespace {

int create_stream(const char* function, void** stream) {
  if (int status = check_usable(function)) return status;
  if (stream == nullptr) return fail(function, kInvalidParam, "stream must not be null");
  const Found<Context> context = require_context(function);
  if (!context) return context.status;
  *stream = streams().add(make_stream(context));
  count_live(Live::kStream, 1);
  return kSuccess;
}

int destroy_stream(const char* function, void* handle, bool drain) {
  if (int status = check_usable(function)) return status;
  const Found<Stream> stream = living(function, streams().remove(handle));
  if (!stream) return stream.status;
  if (std::shared_ptr<Graph> graph = stream->capture())
    graph->invalidate("a captured stream was destroyed");
  stream->stop(drain);
  count_live(Live::kStream, -1);
  return kSuccess;
}

int synchronize_stream(const char* function, void* handle, int timeout_ms) {
  const Found<Stream> stream = find_stream(function, handle);
  return stream ? synchronize(function, "stream", *stream, timeout_ms) : stream.status;
}

}  // namespace

CANN_API int aclrtCreateStream(void** stream) { return create_stream(__func__, stream); }

CANN_API int aclrtCreateStreamWithConfig(void** stream, uint32_t priority, uint32_t flag) {
  (void)priority;  // no stream is preferred to another
  (void)flag;      // fast launch and fast synchronisation change a device's speed only
  return create_stream(__func__, stream);
}

CANN_API int aclrtDestroyStream(void* stream) {
  return destroy_stream(__func__, stream, /*drain=*/true);
}

CANN_API int aclrtDestroyStreamForce(void* stream) {
  return destroy_stream(__func__, stream, /*drain=*/false);
}

CANN_API int aclrtSynchronizeStream(void* stream) {
  return synchronize_stream(__func__, stream, -1);
}

CANN_API int aclrtSynchronizeStreamWithTimeout(void* stream, int32_t timeout_ms) {
  if (timeout_ms < -1) {
    return fail(__func__, kInvalidParam,
                "timeout must be at least -1, got " + std::to_string(timeout_ms));
  }
  return synchronize_stream(__func__, stream, timeout_ms);
}

CANN_API int aclrtStreamQuery(void* handle, int* stream_status) {
  if (stream_status == nullptr) return fail(__func__, kInvalidParam, "status must not be null");
  const Found<Stream> stream = find_stream(__func__, handle);
  if (!stream) return stream.status;
  *stream_status = stream->idle() ? kComplete : kNotReady;
  return kSuccess;
}

CANN_API int aclrtStreamGetId(void* handle, int32_t* id) {
  if (id == nullptr) return fail(__func__, kInvalidParam, "streamId must not be null");
  const Found<Stream> stream = find_stream(__func__, handle);
  if (!stream) return stream.status;
  *id = stream->id();
  return kSuccess;
}

/// Every context here stops on failure. That is what mode 1 asks for; mode 0 (carry on) is not
/// emulated.
CANN_API int aclrtSetStreamFailureMode(void* handle, uint64_t mode) {
  if (int status = find_stream(__func__, handle).status) return status;
  constexpr uint64_t kStopOnFailure = 1;
  if (mode == kStopOnFailure) return kSuccess;
  return fail(__func__, kFeatureNotSupported,
              "mode must be ACL_STOP_ON_FAILURE (1), got " + std::to_string(mode) +
                  "; nothing else is emulated");
}

CANN_API int aclrtSetStreamAttribute(void* handle, int attribute, const void* value) {
  if (value == nullptr) return fail(__func__, kInvalidParam, "value must not be null");
  constexpr int kFailureMode = 1;
  if (attribute == kFailureMode)
    return aclrtSetStreamFailureMode(handle, *static_cast<const uint64_t*>(value));
  return find_stream(__func__, handle).status;  // tags, profiling, priorities: no effect here
}

CANN_API int aclrtLaunchHostFunc(void* handle, void (*function)(void*), void* arguments) {
  if (int status = check_usable(__func__)) return status;
  if (function == nullptr) return fail(__func__, kInvalidParam, "fn must not be null");
  const Found<Stream> stream = find_stream(__func__, handle);
  if (!stream) return stream.status;
  return submit(__func__, *stream,
                {"aclrtLaunchHostFunc", [function, arguments] { function(arguments); }});
}
