// Task groups: tasks of a captured graph that a program replaces between replays, for example when
// the lengths of sequences have changed, which an operator takes from the host. What is issued to a
// stream between aclmdlRICaptureTaskUpdateBegin and End does not run: it takes the group's place in
// the graph when the stream comes to the end of the update.
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/errors.h"
#include "runtime/graph.h"
#include "runtime/streams.h"

namespace hostcann::runtime {

HandleTable<TaskGroup>& task_groups() { return only<HandleTable<TaskGroup>>(); }

Task TaskGroup::place(Task task) {
  std::lock_guard<std::mutex> lock(mutex_);
  Task node = task;
  node.run = [self = shared_from_this(), position = tasks_.size()] {
    std::unique_lock<std::mutex> reading(self->mutex_);
    const std::shared_ptr<const Task> current = self->tasks_[position];
    reading.unlock();
    current->run();
  };
  tasks_.push_back(std::make_shared<const Task>(std::move(task)));
  return node;
}

void TaskGroup::offer(Task task) {
  std::lock_guard<std::mutex> lock(mutex_);
  offered_.push_back(std::make_shared<const Task>(std::move(task)));
}

Found<const Task> TaskGroup::take_offer(const char* function) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<const Task>> offered = std::exchange(offered_, {});
  bool alike = offered.size() == tasks_.size();
  for (size_t i = 0; alike && i < offered.size(); ++i) alike = offered[i]->name == tasks_[i]->name;
  if (!alike) {
    return {nullptr, fail(function, kInvalidParam,
                          "an update must issue the tasks of its group again, in their order")};
  }
  auto update = [self = shared_from_this(), offered = std::move(offered)] {
    std::lock_guard<std::mutex> writing(self->mutex_);
    self->tasks_ = offered;
  };
  return {std::make_shared<const Task>(Task{function, std::move(update)}), kSuccess};
}

}  // namespace hostcann::runtime

using namespace hostcann;           // NOLINT: this file ends with CANN's C functions
using namespace hostcann::runtime;  // NOLINT

CANN_API int aclmdlRICaptureTaskGrpBegin(void* stream_handle) {
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  if (!stream->capture())
    return fail(__func__, kStreamNotCaptured, "the stream is not being captured");
  if (stream->task_group())
    return fail(__func__, kTaskGroupStatus, "a task group of the stream is open already");
  stream->set_task_group(std::make_shared<TaskGroup>());
  return kSuccess;
}

CANN_API int aclmdlRICaptureTaskGrpEnd(void* stream_handle, void** handle) {
  if (handle == nullptr) return fail(__func__, kInvalidParam, "handle must not be null");
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  const std::shared_ptr<Graph> graph = stream->capture();
  if (!graph || !stream->task_group())
    return fail(__func__, kTaskGroupStatus, "no task group of the stream is open");
  *handle = task_groups().add(stream->task_group());
  graph->own_task_group(*handle);
  stream->set_task_group(nullptr);
  return kSuccess;
}

CANN_API int aclmdlRICaptureTaskUpdateBegin(void* stream_handle, void* handle) {
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  if (stream->capture()) return fail(__func__, kStreamCaptured, "the stream is being captured");
  if (stream->task_group())
    return fail(__func__, kTaskGroupStatus, "an update of the stream has begun already");
  const Found<TaskGroup> group = find_handle(task_groups(), handle, __func__, kInvalidHandle,
                                             "the task group is gone, or never was one");
  if (!group) return group.status;
  stream->set_task_group(group);
  return kSuccess;
}

CANN_API int aclmdlRICaptureTaskUpdateEnd(void* stream_handle) {
  const Found<Stream> stream = find_stream(__func__, stream_handle);
  if (!stream) return stream.status;
  const std::shared_ptr<TaskGroup> group = stream->task_group();
  if (!group || stream->capture())
    return fail(__func__, kTaskGroupStatus, "no update of the stream has begun");
  stream->set_task_group(nullptr);
  const Found<const Task> update = group->take_offer(__func__);
  return update ? submit(__func__, *stream, *update) : update.status;
}
