// Events. Recording one queues a task that completes a record; whoever waits keeps the record that
// was the latest then.
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "runtime/activities.h"
#include "runtime/contexts.h"
#include "runtime/errors.h"
#include "runtime/faults.h"
#include "runtime/graph.h"
#include "runtime/memory.h"
#include "runtime/streams.h"

namespace hostcann {
namespace runtime {
namespace {

constexpr uint32_t kFlagTimeline = 0x8;
constexpr uint32_t kFlagExternal = 0x20;  // a node of a captured graph, not an edge in it

/// One execution of aclrtRecordEvent. Guarded by hub().mutex.
struct EventRecord {
  bool done = false;
  std::chrono::steady_clock::time_point time;
  std::weak_ptr<Stream> stream;
  uint64_t number = 0;
};

/// Where a record was captured: an edge of that graph, which nobody outside can wait for.
struct CapturedRecord {
  std::weak_ptr<Graph> graph;
  CaptureClock clock;
};

struct Event {
  explicit Event(uint32_t flags) : flags(flags) {}
  const uint32_t flags;
  std::mutex mutex;
  std::shared_ptr<EventRecord> record;  // null: never recorded, or reset
  std::optional<CapturedRecord> captured;
  int pending_waits = 0;  // aclrtStreamWaitEvent calls whose task has not finished

  std::shared_ptr<EventRecord> latest_record() {
    std::lock_guard<std::mutex> lock(mutex);
    return record;
  }
};

/// All records share one lock and one condition: their number changes fast, the number of waiters
/// is small.
struct Hub {
  std::mutex mutex;
  std::condition_variable changed;
};

Hub& hub() { return only<Hub>(); }

HandleTable<Event>& events() { return only<HandleTable<Event>>(); }

void complete(EventRecord& record) {
  std::lock_guard<std::mutex> lock(hub().mutex);
  record.done = true;
  record.time = std::chrono::steady_clock::now();
  hub().changed.notify_all();
}

/// Lets the recording stream run up to the record (in lazy mode nobody else does).
void permit(const EventRecord& record) {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(hub().mutex);
    stream = record.stream.lock();
    number = record.number;
  }
  if (stream) stream->permit(number);
}

/// Blocks until the record is done, or until `waiting`, the stream on whose thread this runs, is
/// being ended.
void wait_for(const EventRecord& record, const Stream& waiting) {
  permit(record);
  std::unique_lock<std::mutex> lock(hub().mutex);
  hub().changed.wait(lock,
                     [&] { return record.done || record.stream.expired() || waiting.stopping(); });
}

constexpr const char* kNoEvent = "the event is gone, or never was one";

Found<Event> find_event(const char* function, void* handle) {
  if (int status = check_usable(function)) return {nullptr, status};
  return find_handle(events(), handle, function, kInvalidHandle, kNoEvent);
}

int refuse_captured(const char* function, Event& event) {
  std::lock_guard<std::mutex> lock(event.mutex);
  if (!event.captured) return kSuccess;
  if (std::shared_ptr<Graph> graph = event.captured->graph.lock()) {
    if (graph->capturing())
      graph->invalidate(std::string(function) + " on an event of the capture");
  }
  return fail(function, kEventCaptured,
              "the event was last recorded in a captured stream: it never completes by itself");
}

int create_event(const char* function, void** event, uint32_t flags) {
  if (int status = check_usable(function)) return status;
  if (event == nullptr) return fail(function, kInvalidParam, "event must not be null");
  *event = events().add(std::make_shared<Event>(flags));
  count_live(Live::kEvent, 1);
  return kSuccess;
}

/// The task that completes `record`, on whichever stream it runs.
Task record_task(const std::shared_ptr<EventRecord>& record) {
  Task task{"aclrtRecordEvent", [record] { complete(*record); }};
  task.after_failure = true;
  return task;
}

int record_in_capture(const char* function, const std::shared_ptr<Event>& event, Stream& stream,
                      const std::shared_ptr<Graph>& graph) {
  std::lock_guard<std::mutex> lock(event->mutex);
  if ((event->flags & kFlagExternal) == 0) {
    event->record = nullptr;
    event->captured = CapturedRecord{graph, graph->clock_of(stream).value_or(CaptureClock{})};
    return kSuccess;
  }
  Task task{"aclrtRecordEvent", [event] {
              auto record = std::make_shared<EventRecord>();
              complete(*record);
              std::lock_guard<std::mutex> lock(event->mutex);
              event->record = record;
            }};
  task.after_failure = true;
  return graph->append(function, stream, std::move(task));
}

/// A record that `event` has at the time the task runs: what an external event means inside a
/// graph.
void wait_for_external(const std::shared_ptr<Event>& event, const std::weak_ptr<Stream>& waiting) {
  const std::shared_ptr<EventRecord> record = event->latest_record();
  std::shared_ptr<Stream> stream = waiting.lock();
  if (record && stream) wait_for(*record, *stream);
}

}  // namespace

void wake_event_waits() {
  std::lock_guard<std::mutex> lock(hub().mutex);
  hub().changed.notify_all();
}

}  // namespace runtime
}  // namespace hostcann

using namespace hostcann;           // NOLINT: this file ends with CANN's C functions
using namespace hostcann::runtime;  // NOLINT

CANN_API int aclrtCreateEvent(void** event) { return create_event(__func__, event, kFlagTimeline); }

CANN_API int aclrtCreateEventWithFlag(void** event, uint32_t flags) {
  return create_event(__func__, event, flags);
}

CANN_API int aclrtCreateEventExWithFlag(void** event, uint32_t flags) {
  return create_event(__func__, event, flags);
}

CANN_API int aclrtDestroyEvent(void* handle) {
  if (int status = check_usable(__func__)) return status;
  if (!events().remove(handle)) return fail(__func__, kInvalidHandle, kNoEvent);
  count_live(Live::kEvent, -1);
  return kSuccess;
}

CANN_API int aclrtRecordEvent(void* handle, void* stream_handle) {
  const Found<Event> event = find_event(__func__, handle);
  if (!event) return event.status;
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  if (std::shared_ptr<Graph> graph = stream->capture())
    return record_in_capture(__func__, event, *stream, graph);
  auto record = std::make_shared<EventRecord>();
  // Held across the queueing: two threads that record one event leave the later record in it.
  std::lock_guard<std::mutex> lock(event->mutex);
  uint64_t number = stream->enqueue({std::make_shared<const Task>(record_task(record))});
  if (number == 0) return fail(__func__, kStreamContext, "the stream is being destroyed");
  {
    std::lock_guard<std::mutex> hub_lock(hub().mutex);
    record->stream = stream;
    record->number = number;
  }
  event->record = record;
  event->captured.reset();
  return kSuccess;
}

CANN_API int aclrtStreamWaitEvent(void* stream_handle, void* handle) {
  const Found<Event> event = find_event(__func__, handle);
  if (!event) return event.status;
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  std::shared_ptr<EventRecord> record;
  std::optional<CapturedRecord> captured;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    record = event->record;
    captured = event->captured;
  }
  std::shared_ptr<Graph> graph = stream->capture();
  if (captured) {
    std::shared_ptr<Graph> recorded_in = captured->graph.lock();
    if (!recorded_in || !recorded_in->capturing() || (graph && graph != recorded_in)) {
      return fail(__func__, kEventCaptured,
                  "the event belongs to another capture, or to one that has ended");
    }
    recorded_in->join(*stream, captured->clock);
    return kSuccess;
  }
  if (graph && (event->flags & kFlagExternal) != 0) {
    std::weak_ptr<Stream> waiting = stream;
    return graph->append(__func__, *stream, {"aclrtStreamWaitEvent", [event, waiting] {
                                               wait_for_external(event, waiting);
                                             }});
  }
  // In a capture, what was recorded outside is over when the graph is replayed: nothing to add to
  // it.
  if (!record || graph) return kSuccess;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    ++event->pending_waits;
  }
  std::weak_ptr<Stream> waiting = stream;
  Task task{"aclrtStreamWaitEvent", [event, record, waiting] {
              if (std::shared_ptr<Stream> self = waiting.lock()) wait_for(*record, *self);
              std::lock_guard<std::mutex> lock(event->mutex);
              --event->pending_waits;
            }};
  task.after_failure = true;  // later records of this stream must not overtake what they wait for
  return submit(__func__, *stream, std::move(task));
}

CANN_API int aclrtSynchronizeEvent(void* handle) {
  const Found<Event> event = find_event(__func__, handle);
  if (!event) return event.status;
  if (int captured = refuse_captured(__func__, *event)) return captured;
  count_synchronization("event");
  if (int injected = take_call_fault("synchronize", __func__, kSchedulerError)) return injected;
  const std::shared_ptr<EventRecord> record = event->latest_record();
  if (!record) return kSuccess;
  permit(*record);
  std::shared_ptr<Stream> stream;
  {
    std::unique_lock<std::mutex> lock(hub().mutex);
    hub().changed.wait(lock, [&] { return record->done || record->stream.expired(); });
    stream = record->stream.lock();
  }
  if (stream) return finish_waiting(*stream->context());
  check_red_zones();
  return kSuccess;
}

CANN_API int aclrtQueryEventStatus(void* handle, int* event_status) {
  if (event_status == nullptr) return fail(__func__, kInvalidParam, "status must not be null");
  const Found<Event> event = find_event(__func__, handle);
  if (!event) return event.status;
  if (int captured = refuse_captured(__func__, *event)) return captured;
  constexpr int kNotRecorded = 0;  // aclrtEventRecordedStatus
  constexpr int kRecorded = 1;
  const std::shared_ptr<EventRecord> record = event->latest_record();
  std::lock_guard<std::mutex> lock(hub().mutex);
  *event_status = record && record->done ? kRecorded : kNotRecorded;
  return kSuccess;
}

CANN_API int aclrtQueryEventWaitStatus(void* handle, int* wait_status) {
  if (wait_status == nullptr) return fail(__func__, kInvalidParam, "status must not be null");
  const Found<Event> event = find_event(__func__, handle);
  if (!event) return event.status;
  std::lock_guard<std::mutex> lock(event->mutex);
  *wait_status = event->pending_waits == 0 ? kComplete : kNotReady;
  return kSuccess;
}

CANN_API int aclrtEventElapsedTime(float* milliseconds, void* start_handle, void* end_handle) {
  if (milliseconds == nullptr) return fail(__func__, kInvalidParam, "ms must not be null");
  std::chrono::steady_clock::time_point times[2];
  void* handles[2] = {start_handle, end_handle};
  for (int i = 0; i < 2; ++i) {
    const char* which = i == 0 ? "start" : "end";
    const Found<Event> event = find_event(__func__, handles[i]);
    if (!event) return event.status;
    const std::shared_ptr<EventRecord> record = event->latest_record();
    if ((event->flags & kFlagTimeline) == 0) {
      return fail(__func__, kEventTimestampInvalid,
                  std::string(which) + " event was made without ACL_EVENT_TIME_LINE");
    }
    std::lock_guard<std::mutex> lock(hub().mutex);
    if (!record || !record->done) {
      return fail(__func__, kEventTimestampInvalid,
                  std::string(which) + " event is not recorded, or not complete");
    }
    times[i] = record->time;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
  return kSuccess;
}

CANN_API int aclrtResetEvent(void* handle, void* stream_handle) {
  const Found<Event> event = find_event(__func__, handle);
  if (!event) return event.status;
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  return submit(__func__, *stream, {"aclrtResetEvent", [event] {
                                      std::lock_guard<std::mutex> lock(event->mutex);
                                      event->record = nullptr;
                                    }});
}
