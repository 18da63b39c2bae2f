// Contexts, which fail as a whole.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/errors.h"

namespace hostcann::runtime {

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

}  // namespace hostcann::runtime
