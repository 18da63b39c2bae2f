// What the layers of hostcann offer one another.
//
// Everything here lives in libascendcl.so (hostcann/csrc/runtime): device memory, streams, errors,
// faults and counters are process-wide state and exist once. The operator libraries
// (hostcann/csrc/opapi, aten) use this header and hold no state of their own. Nothing in it is an
// interface of CANN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#define HOSTCANN_API __attribute__((visibility("default")))

namespace hostcann {

/// The one T of its library. It outlives every destructor that still uses it, and is never freed.
template <typename T>
T& only() {
  static auto* one = new T{};
  return *one;
}

// ---- status codes of CANN that hostcann returns (values as documented by CANN) ----
inline constexpr int kSuccess = 0;
inline constexpr int kInvalidParam = 100000;         // ACL_ERROR_INVALID_PARAM
inline constexpr int kOutOfMemory = 207001;          // ACL_ERROR_RT_MEMORY_ALLOCATION
inline constexpr int kRuntimeParamInvalid = 107000;  // ACL_ERROR_RT_PARAM_INVALID
inline constexpr int kStreamContext = 107003;        // ACL_ERROR_RT_STREAM_CONTEXT
inline constexpr int kDeviceTaskFailed =
    507035;  // a vector core exception: what a faulting kernel reports
inline constexpr int kInternalError = 500000;        // ACL_ERROR_INTERNAL_ERROR
inline constexpr int kAclnnNullptr = 161001;         // ACLNN_ERR_PARAM_NULLPTR
inline constexpr int kAclnnInvalid = 161002;         // ACLNN_ERR_PARAM_INVALID
inline constexpr int kAclnnRuntime = 361001;         // ACLNN_ERR_RUNTIME_ERROR
inline constexpr int kAclnnTiling = 561002;          // ACLNN_ERR_INNER_TILING_ERROR
inline constexpr int kAclnnUnsupportedSoc = 561003;  // ACLNN_ERR_INNER_FIND_KERNEL_ERROR

// ---- errors ----

/// Sets the calling thread's message for aclGetRecentErrMsg (which clears it on reading) and
/// returns `code`.
HOSTCANN_API int set_error(int code, const std::string& message);

/// Thrown by a task to say that it failed; the stream's context then stays failed with `code`.
struct HOSTCANN_API TaskError : std::runtime_error {
  TaskError(int code_, const std::string& message) : std::runtime_error(message), code(code_) {}
  int code;
};

// ---- violations: misuse of CANN's interface that a device would punish later, or never ----

enum class Violation {
  kExecutorReused,
  kExecutorLeaked,
  kTensorDestroyedTwice,
  kTensorDestroyedEarly,  // between the two phases
  kFreedOperand,          // an address that is not, or no longer, in a live block
  kOutOfRangeOperand,     // an operand that runs past its block
  kWorkspaceUndersized,
  kWorkspaceOverrun,  // the red zone behind a workspace or block was written
  kMisaligned,
  kDeadStream,
  kLeak,
  kCollectiveMismatch,  // ranks that call different collectives, or with other arguments
};
HOSTCANN_API void report_violation(Violation kind, const std::string& message);

// ---- device memory ----

/// The host bytes behind [device_address, device_address + bytes). Called on stream threads, when
/// the task runs. Reports a violation and throws TaskError when the range is not inside one live
/// block. `what` names the operand.
HOSTCANN_API std::byte* resolve(const void* device_address, size_t bytes, const std::string& what);

// ---- who asks for what ----

/// Where the program was when it asked for something, and what it held then.
struct Caller {
  int64_t line = 0;    // of hostcann_line(); 0: none is known
  int64_t memory = 0;  // bytes of device memory in use
};

/// The calling thread's, as it is now. Calls into Python where a program has asked for lines, so no
/// lock may be held that a thread with Python's lock could be waiting for.
HOSTCANN_API Caller find_caller();

/// Bytes of device memory that a kernel touches.
struct Traffic {
  uint64_t read = 0;
  uint64_t written = 0;
};

// ---- streams ----

/// Puts a kernel at the end of `stream` (null = the context's default stream); captured instead of
/// run while the stream is being captured. Returns a status; a gone stream is a violation and an
/// error. `name` is the operator's name: task faults are matched against it. A captured kernel runs
/// once per replay of its graph, and is copied and destroyed on any thread. `traffic` and `caller`
/// are counted. Other processes wait for a collective: on a lazy stream it runs a moment after it
/// was queued, with what comes before it, since they cannot synchronise this one's stream.
HOSTCANN_API int launch(void* stream, const std::string& name, std::function<void()> kernel,
                        const Traffic& traffic = {}, const Caller& caller = {},
                        bool is_collective = false);

// ---- fault injection ----

struct InjectedFault {
  int code;  // 0 leaves the status to the site
  std::string message;
};

/// The injected fault by which this occurrence of (`site`, `name`) must fail. Counts the
/// occurrence. Sites: "malloc", "workspace" (phase 1 reports an absurd size), "phase1", "phase2",
/// "task", "memcpy", "synchronize".
HOSTCANN_API std::optional<InjectedFault> take_injected_fault(const char* site,
                                                              const std::string& name);

// ---- what is alive, for leak tests ----

enum class Live {
  kTensor,
  kScalar,
  kArray,
  kTensorList,
  kExecutor,
  kStream,
  kEvent,
  kBlock,
  kHostBlock,
  kCount
};
HOSTCANN_API void count_live(Live kind, int change);

/// The SoC's name as aclrtGetSocName says it (HOSTCANN_SOC, default Ascend910B3).
HOSTCANN_API const char* soc_name();

}  // namespace hostcann
