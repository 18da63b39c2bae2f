// What the files of the runtime share. Private to libascendcl.so: the operator libraries see
// hostcann.h alone.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hostcann/hostcann.h"
#include "runtime/addresses.h"
#include "runtime/codes.h"

/// CANN's functions: the names that libascendcl.so exports for programs written against CANN.
#define CANN_API extern "C" HOSTCANN_API

namespace hostcann::runtime {

// ---- errors (errors.cpp) ----

/// set_error() with "{function}: " in front of the message.
int fail(const char* function, int code, const std::string& message);

/// What a handle or a thread stands for. Null after an error, whose status the caller returns.
template <typename T>
struct Found : std::shared_ptr<T> {
  int status = kSuccess;
};

/// What `table` has behind a handle, or fail() with the code and the message.
template <typename T>
Found<T> find_handle(const HandleTable<T>& table, void* handle, const char* function, int code,
                     const char* message) {
  std::shared_ptr<T> object = table.find(handle);
  const int status = object ? kSuccess : fail(function, code, message);
  return {std::move(object), status};
}

/// The answer of a name that exists only so that programs link: says which one it was.
int not_emulated(const char* function);

/// Whether the process is a fork of the one that loaded the runtime: the streams' threads do not
/// exist in it (CANN forbids it too), and what was counted is its parent's.
bool is_fork();

/// 0, or the error of a call that cannot work here: settings from the environment are wrong, or the
/// process is a fork.
int check_usable(const char* function);

// ---- settings from the environment (settings.cpp) ----

/// aclrtStreamStatus and aclrtEventWaitStatus.
inline constexpr int kComplete = 0;
inline constexpr int kNotReady = 1;

enum class StreamMode { kNormal, kDelayed, kLazy };

struct Settings {
  std::string soc_name;
  std::string cann_version;
  std::string report_path;
  std::string startup;  // a line of Python
  int devices = 1;      // how many a program is told of; a process has one of them
  int log_level = 4;    // of the least important of torch_npu's messages that are printed
  bool strict = false;
  std::string error;  // what is wrong with the environment; empty when nothing is
};
const Settings& settings();
std::optional<StreamMode> parse_stream_mode(const std::string& text);
std::optional<uint64_t> parse_bytes(const std::string& text);

// ---- contexts and devices (device.cpp) ----

struct Failure {
  int code = kSuccess;
  std::string message;
};

class Stream;

/// A context fails as a whole: after one task has failed nothing else runs in it
/// (ACL_STOP_ON_FAILURE).
class Context : public std::enable_shared_from_this<Context> {
 public:
  explicit Context(int device) : device_(device) {}

  int device() const { return device_; }
  std::shared_ptr<Stream> default_stream();  // made when it is first asked for
  std::shared_ptr<Stream> existing_default_stream() const;
  std::shared_ptr<Stream> release_default_stream();

  /// Keeps the first failure.
  void fail(Failure failure);
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  /// The failure, which from now on counts as reported to the program: later launches are refused.
  Failure report_failure();

  /// The failure if the program has been told of it; code 0 otherwise.
  Failure reported_failure() const;

 private:
  const int device_;
  mutable std::mutex mutex_;
  std::shared_ptr<Stream> default_stream_;
  Failure failure_;
  bool reported_ = false;
  std::atomic<bool> failed_{false};
};

/// The calling thread's context.
Found<Context> require_context(const char* function);

/// What ends every wait for tasks of a context: looks at the red zones and reports its failure.
int finish_waiting(Context& context);

// ---- streams (streams.cpp) ----

/// Something that the host asked of the device, and that is counted.
struct Activity {
  enum class Kind { kLaunch, kCopy, kFill, kWait, kReplay, kReplayed };
  Kind kind;
  std::string name;  // the operator, the direction of a copy, what was waited for
  Traffic traffic{};
  uint64_t copied = 0;
};

struct Task {
  std::string name;
  std::function<void()> run;
  std::optional<Activity> activity{};  // counted when the task is queued, or its graph replayed
  bool is_kernel = false;              // injected faults of site "task" and null_kernels() apply
  bool after_failure = false;          // also run in a failed context: others wait for it
  bool is_collective = false;          // other processes wait for it
};

class Graph;

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

// ---- events (events.cpp) ----

/// Makes stream threads that wait for an event look again whether they are still to wait.
void wake_event_waits();

// ---- graph capture (graph.cpp) ----

/// How far each captured stream had come, as one of them knows it: joins are checked with it at the
/// end of a capture.
using CaptureClock = std::map<const Stream*, uint64_t>;

class Graph {
 public:
  Graph(std::shared_ptr<Stream> origin, int mode, uint32_t id)
      : origin_(std::move(origin)), mode_(mode), id_(id), owner_(std::this_thread::get_id()) {}

  int append(const char* function, Stream& stream, Task task);
  std::optional<CaptureClock> clock_of(const Stream& stream) const;
  /// `stream` waits for what `clock` stands for; it joins the capture when it is not in it yet.
  void join(Stream& stream, const CaptureClock& clock);
  void invalidate(const std::string& reason);
  int finish(const char* function, Stream& stream);
  /// Takes every stream out of the capture.
  void release_streams();

  bool capturing() const;
  bool valid() const;
  int mode() const { return mode_; }
  uint32_t id() const { return id_; }
  std::thread::id owner() const { return owner_; }
  void* handle = nullptr;
  std::vector<std::shared_ptr<const Task>> nodes() const;

 private:
  int check_valid(const char* function) const;  // with mutex_ held

  mutable std::mutex mutex_;
  std::shared_ptr<Stream> origin_;
  const int mode_;
  const uint32_t id_;
  const std::thread::id owner_;
  bool capturing_ = true;
  std::string invalid_;
  std::vector<std::shared_ptr<const Task>> nodes_;
  std::map<std::shared_ptr<Stream>, CaptureClock> clocks_;
};

HandleTable<Graph>& graphs();

/// The error of a call that a running capture forbids (it waits for, or works outside, what is
/// being recorded); the capture is then invalid.
int refuse_in_capture(const char* function);

// ---- memory (memory.cpp, host_memory.cpp) ----

/// While it lives, blocks that resolve() finds on this thread stay mapped even when they are freed
/// meanwhile.
class TaskScope {
 public:
  explicit TaskScope(const std::string& name);
  ~TaskScope();
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;
};

/// Reports every red zone that was written since it was last looked at.
void check_red_zones();
void set_memory_capacity(uint64_t bytes);
uint64_t memory_capacity();
int64_t memory_in_use();
void free_all_blocks();

/// Whether [address, address + bytes) is host memory from aclrtMallocHost.
bool is_pinned(const void* address, size_t bytes);
size_t page_bytes();
size_t whole_pages(size_t bytes);
std::string describe_address(const void* address);

// ---- what is counted (activities.cpp), and whose it is (callers.cpp) ----

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

// ---- faults, violations (faults.cpp, counters.cpp) ----

/// "" or why the text is not a list of faults (site:name:nth[:code],...); faults before the wrong
/// one are injected.
std::string inject_from_text(const std::string& text);
std::string inject(const std::string& site, const std::string& name, int nth, int code,
                   const std::string& message, int count);
void clear_faults();

/// 0, or the error of a fault that was injected into this call; `code` where it names none.
int take_call_fault(const char* site, const char* function, int code);

void reset_violations();
size_t violation_count();
/// Launches of kernels are accepted and dropped: host-side overhead can be measured alone.
bool null_kernels();
void set_null_kernels(bool enabled);
int64_t live_count(Live kind);

std::string violations_json();
std::string live_json();
std::string quote_json(const std::string& text);

}  // namespace hostcann::runtime
