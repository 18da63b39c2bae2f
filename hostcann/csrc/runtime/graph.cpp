// Capture and replay (aclmdlRI*). A captured graph is the list of its tasks in the order of their
// calls: the host cannot have called a task before what it depends on, so running them one after
// the other keeps every dependency.
#include "runtime/graph.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/activities.h"
#include "runtime/contexts.h"
#include "runtime/errors.h"
#include "runtime/streams.h"

namespace hostcann {
namespace runtime {
namespace {

/// aclmdlRICaptureMode: which threads' blocking calls a capture forbids.
enum CaptureMode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

thread_local int thread_mode = kGlobal;
std::atomic<int> captures_running{0};
std::atomic<uint32_t> next_graph_id{1};

Found<Graph> find_graph(const char* function, void* handle) {
  if (int status = check_usable(function)) return {nullptr, status};
  return find_handle(graphs(), handle, function, kInvalidHandle,
                     "the model is gone, or never was one");
}

Found<Graph> find_captured_graph(const char* function, void* handle) {
  Found<Graph> graph = find_graph(function, handle);
  if (!graph || !graph->capturing()) return graph;
  return {nullptr, fail(function, kInvalidHandle, "the model is still being captured")};
}

}  // namespace

HandleTable<Graph>& graphs() { return only<HandleTable<Graph>>(); }

int Graph::check_valid(const char* function) const {
  if (invalid_.empty()) return kSuccess;
  return fail(function, kCaptureInvalidated, "the capture is invalid since " + invalid_);
}

Graph::~Graph() {
  for (void* group : task_groups_) task_groups().remove(group);
}

int Graph::append(const char* function, Stream& stream, Task task) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (int status = check_valid(function)) return status;
  if (const std::shared_ptr<TaskGroup> group = stream.task_group())
    task = group->place(std::move(task));
  nodes_.push_back(std::make_shared<const Task>(std::move(task)));
  ++clocks_[stream.shared_from_this()][&stream];
  return kSuccess;
}

std::optional<CaptureClock> Graph::clock_of(const Stream& stream) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(clocks_.begin(), clocks_.end(),
                            [&stream](const auto& entry) { return entry.first.get() == &stream; });
  return found == clocks_.end() ? std::nullopt : std::optional<CaptureClock>(found->second);
}

void Graph::join(Stream& stream, const CaptureClock& clock) {
  std::lock_guard<std::mutex> lock(mutex_);
  CaptureClock& mine = clocks_[stream.shared_from_this()];
  for (const auto& [other, reached] : clock) mine[other] = std::max(mine[other], reached);
  stream.set_capture(graphs().find(handle));
}

void Graph::invalidate(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (capturing_ && invalid_.empty()) invalid_ = reason;
}

int Graph::finish(const char* function, Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (&stream != origin_.get()) {
    return fail(function, kCaptureUnmatched,
                "the capture must end on the stream on which it began");
  }
  if (mode_ != kRelaxed && std::this_thread::get_id() != owner_) {
    return fail(function, kCaptureWrongThread, "the capture must end on the thread that began it");
  }
  const CaptureClock joined = clocks_[origin_];
  for (const auto& [other, clock] : clocks_) {
    auto own = clock.find(other.get());
    auto known = joined.find(other.get());
    uint64_t reached = known == joined.end() ? 0 : known->second;
    if (own != clock.end() && own->second > reached && invalid_.empty()) {
      invalid_ = "another stream joined it and was not joined back";
      capturing_ = false;
      return fail(function, kStreamUnjoined, "the capture is invalid: " + invalid_);
    }
  }
  capturing_ = false;
  return check_valid(function);
}

void Graph::own_task_group(void* group) {
  std::lock_guard<std::mutex> lock(mutex_);
  task_groups_.push_back(group);
}

void Graph::release_streams() {
  std::vector<std::shared_ptr<Stream>> released;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& entry : clocks_) released.push_back(entry.first);
    clocks_.clear();
    origin_ = nullptr;
  }
  for (const std::shared_ptr<Stream>& stream : released) {
    stream->set_capture(nullptr);
    stream->set_task_group(nullptr);
  }
}

bool Graph::capturing() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return capturing_;
}

bool Graph::valid() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return invalid_.empty();
}

std::vector<std::shared_ptr<const Task>> Graph::nodes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return nodes_;
}

int refuse_in_capture(const char* function) {
  if (captures_running.load() == 0 || thread_mode == kRelaxed) return kSuccess;
  for (const auto& entry : graphs().entries()) {
    const std::shared_ptr<Graph>& graph = entry.second;
    if (!graph->capturing()) continue;
    bool own = graph->owner() == std::this_thread::get_id();
    bool forbidden =
        own ? graph->mode() != kRelaxed : graph->mode() == kGlobal && thread_mode == kGlobal;
    if (!forbidden) continue;
    graph->invalidate(std::string(function) + " was called");
    return fail(function, kCaptureModeNotSupported,
                "the call blocks, which the running capture's mode forbids");
  }
  return kSuccess;
}

}  // namespace runtime
}  // namespace hostcann

using namespace hostcann;           // NOLINT: this file ends with CANN's C functions
using namespace hostcann::runtime;  // NOLINT

CANN_API int aclmdlRICaptureBegin(void* stream_handle, int mode) {
  if (int status = check_usable(__func__)) return status;
  if (mode < kGlobal || mode > kRelaxed) {
    return fail(__func__, kInvalidParam, "mode must be 0, 1 or 2, got " + std::to_string(mode));
  }
  if (stream_handle == nullptr)
    return fail(__func__, kInvalidParam, "the default stream cannot be captured");
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  if (stream->capture())
    return fail(__func__, kStreamCaptured, "the stream is being captured already");
  auto graph = std::make_shared<Graph>(stream, mode, next_graph_id.fetch_add(1));
  graph->handle = graphs().add(graph);
  graph->join(*stream, {});
  ++captures_running;
  return kSuccess;
}

CANN_API int aclmdlRICaptureGetInfo(void* stream_handle, int* capture_status, void** model) {
  if (capture_status == nullptr) return fail(__func__, kInvalidParam, "status must not be null");
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  constexpr int kNone = 0;
  constexpr int kActive = 1;
  constexpr int kInvalidated = 2;
  std::shared_ptr<Graph> graph = stream->capture();
  *capture_status = !graph ? kNone : graph->valid() ? kActive : kInvalidated;
  if (model != nullptr) *model = graph ? graph->handle : nullptr;
  return kSuccess;
}

CANN_API int aclmdlRICaptureEnd(void* stream_handle, void** model) {
  if (model == nullptr) return fail(__func__, kInvalidParam, "modelRI must not be null");
  *model = nullptr;
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  std::shared_ptr<Graph> graph = stream->capture();
  if (!graph) return fail(__func__, kStreamNotCaptured, "the stream is not being captured");
  if (stream->task_group()) graph->invalidate("a task group was not ended");
  const int status = graph->finish(__func__, *stream);
  if (graph->capturing()) return status;  // called wrongly: the capture goes on
  graph->release_streams();
  --captures_running;
  if (status == kSuccess) {
    *model = graph->handle;
  } else {
    graphs().remove(graph->handle);
  }
  return status;
}

CANN_API int aclmdlRICaptureThreadExchangeMode(int* mode) {
  if (mode == nullptr) return fail(__func__, kInvalidParam, "mode must not be null");
  if (*mode < kGlobal || *mode > kRelaxed) {
    return fail(__func__, kInvalidParam, "mode must be 0, 1 or 2, got " + std::to_string(*mode));
  }
  std::swap(*mode, thread_mode);
  return kSuccess;
}

CANN_API int aclmdlRIGetId(void* model, uint32_t* id) {
  if (id == nullptr) return fail(__func__, kInvalidParam, "modelRIId must not be null");
  const Found<Graph> graph = find_graph(__func__, model);
  if (!graph) return graph.status;
  *id = graph->id();
  return kSuccess;
}

CANN_API int aclmdlRIExecuteAsync(void* model, void* stream_handle) {
  const Found<Graph> graph = find_captured_graph(__func__, model);
  if (!graph) return graph.status;
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  if (stream->capture()) {
    return fail(__func__, kFeatureNotSupported, "a model inside a captured stream is not emulated");
  }
  Failure failure = stream->context()->reported_failure();
  if (failure.code != kSuccess)
    return fail(__func__, failure.code, "the context has failed before: " + failure.message);
  std::vector<std::shared_ptr<const Task>> nodes = graph->nodes();
  count_replay(nodes);
  if (!nodes.empty() && stream->enqueue(nodes) == 0) {
    return fail(__func__, kStreamContext, "the stream is being destroyed");
  }
  return kSuccess;
}

CANN_API int aclmdlRIDestroy(void* model) {
  const Found<Graph> graph = find_captured_graph(__func__, model);
  if (!graph) return graph.status;
  graphs().remove(model);
  return kSuccess;
}
