// What a stream's tasks are recorded into while it is captured.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/streams.h"

namespace hostcann::runtime {

/// How far each captured stream had come, as one of them knows it: joins are checked with it at the
/// end of a capture.
using CaptureClock = std::map<const Stream*, uint64_t>;

/// Tasks of a graph that can be replaced (task_groups.cpp).
class TaskGroup : public std::enable_shared_from_this<TaskGroup> {
 public:
  /// Adds a task; returns the graph's node, which runs what is in that place at the time.
  Task place(Task task);
  /// Keeps a task of an update.
  void offer(Task task);
  /// Returns the task that puts what was offered in place, if it is like what is there.
  Found<const Task> take_offer(const char* function);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Task>> tasks_;
  std::vector<std::shared_ptr<const Task>> offered_;
};

HandleTable<TaskGroup>& task_groups();

class Graph {
 public:
  Graph(std::shared_ptr<Stream> origin, int mode, uint32_t id)
      : origin_(std::move(origin)), mode_(mode), id_(id), owner_(std::this_thread::get_id()) {}

  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  int append(const char* function, Stream& stream, Task task);
  std::optional<CaptureClock> clock_of(const Stream& stream) const;
  /// `stream` waits for what `clock` stands for; it joins the capture when it is not in it yet.
  void join(Stream& stream, const CaptureClock& clock);
  void invalidate(const std::string& reason);
  int finish(const char* function, Stream& stream);
  /// The handle goes with the graph.
  void own_task_group(void* group);
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
  std::vector<void*> task_groups_;
  std::map<std::shared_ptr<Stream>, CaptureClock> clocks_;
};

HandleTable<Graph>& graphs();

/// The error of a call that a running capture forbids (it waits for, or works outside, what is
/// being recorded); the capture is then invalid.
int refuse_in_capture(const char* function);

}  // namespace hostcann::runtime
