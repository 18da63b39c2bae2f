// Streams, and the tasks that are queued on them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/activities.h"
#include "runtime/contexts.h"
#include "runtime/errors.h"
#include "runtime/settings.h"

namespace hostcann::runtime {

/// aclrtStreamStatus and aclrtEventWaitStatus.
inline constexpr int kComplete = 0;
inline constexpr int kNotReady = 1;

struct Task {
  std::string name;
  std::function<void()> run;
  std::optional<Activity> activity{};  // counted when the task is queued, or its graph replayed
  bool is_kernel = false;              // injected faults of site "task" and null_kernels() apply
  bool after_failure = false;          // also run in a failed context: others wait for it
  bool is_collective = false;          // other processes wait for it
};

class Graph;
class TaskGroup;

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<Context> context, int id) : context_(std::move(context)), id_(id) {}
  ~Stream();

  const std::shared_ptr<Context>& context() const { return context_; }
  int id() const { return id_; }

  /// Queues the tasks one after the other, nothing between them; the number of the last one. 0
  /// after stop().
  uint64_t enqueue(const std::vector<std::shared_ptr<const Task>>& tasks);

  /// In lazy mode: lets every task up to `number` run.
  void permit(uint64_t number);

  /// Waits for task `number`; false when the time is over first. A negative timeout waits for ever.
  bool wait(uint64_t number, int timeout_ms);

  uint64_t last_number() const;
  bool idle() const;
  bool stopping() const { return stopping_.load(); }
  void wake();

  /// Ends the thread; with `drain`, after what is queued, else after the running task.
  void stop(bool drain);

  std::shared_ptr<Graph> capture() const;
  void set_capture(std::shared_ptr<Graph> graph);

  /// The group that the stream's tasks are captured into, or the one that they update.
  std::shared_ptr<TaskGroup> task_group() const;
  void set_task_group(std::shared_ptr<TaskGroup> group);

 private:
  void work();
  void run(const Task& task);
  bool may_run() const;  // with mutex_ held
  template <typename Condition>
  void wait_for_work(std::unique_lock<std::mutex>& lock, Condition condition);

  const std::shared_ptr<Context> context_;
  const int id_;
  mutable std::mutex mutex_;
  std::condition_variable work_available_;
  std::condition_variable work_done_;
  std::deque<std::shared_ptr<const Task>> queue_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  uint64_t permitted_ = 0;
  uint64_t promised_ = 0;  // the last collective: permitted when its moment has come
  std::chrono::steady_clock::time_point promised_at_{};
  bool draining_ = false;
  std::atomic<bool> stopping_{false};
  bool stopped_ = false;
  std::thread thread_;
  std::shared_ptr<Graph> capture_;
  std::shared_ptr<TaskGroup> task_group_;
};

HandleTable<Stream>& streams();
std::shared_ptr<Stream> make_stream(std::shared_ptr<Context> context);

/// The stream behind a handle (null: the context's default stream). A handle of no living stream is
/// a violation too.
Found<Stream> find_stream(const char* function, void* handle);

/// Queues a task, or appends it to the graph that the stream is being captured into.
int submit(const char* function, Stream& stream, Task task, const Caller& caller = {});

/// Waits for everything queued on `stream` and reports a failure of its context.
int synchronize(const char* function, const char* kind, Stream& stream, int timeout_ms);

/// Removes the streams of a context and ends their threads, after what is queued on them.
void destroy_streams(const Context& context);

/// The contexts' default streams, which have no handle (device.cpp), and the others.
std::vector<std::shared_ptr<Stream>> default_streams();
std::vector<std::shared_ptr<Stream>> all_streams();

void set_stream_mode(StreamMode mode, int delay_ms);

/// Makes stream threads that wait for an event look again whether they are still to wait
/// (events.cpp).
void wake_event_waits();

}  // namespace hostcann::runtime
