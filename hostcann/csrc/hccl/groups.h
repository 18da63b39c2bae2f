// libhccl.so: collectives between processes on one host, each of which has an emulated device.
//
// A group's ranks are joined by Unix sockets, each with each (group.cpp). A collective is a task on
// the caller's stream (call.h): it exchanges bytes with the other ranks and reduces them
// on the host (reduce.cpp). Values as CANN documents them; nothing here says anything about speed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "hostcann/hostcann.h"

#define HCCL_API extern "C" HOSTCANN_API

namespace hostcann::hccl {

// ---- HcclResult ----
inline constexpr int kParameter = 1;     // HCCL_E_PARA
inline constexpr int kPointer = 2;       // HCCL_E_PTR
inline constexpr int kNotSupported = 5;  // HCCL_E_NOT_SUPPORT
inline constexpr int kSystemCall = 8;    // HCCL_E_SYSCALL
inline constexpr int kTimeout = 9;       // HCCL_E_TIMEOUT
inline constexpr int kRuntime = 15;      // HCCL_E_RUNTIME
inline constexpr int kRemote = 21;       // HCCL_E_REMOTE

/// A group cannot be made, or no longer used.
struct GroupError : std::runtime_error {
  GroupError(int result_, const std::string& message)
      : std::runtime_error(message), result(result_) {}
  int result;
};

// ---- elements (reduce.cpp) ----

/// Bytes of an element of an HcclDataType; 0 of one that is not emulated.
size_t size_of(int data_type);

/// "float32": for messages.
std::string name_of_type(int data_type);

enum class Reduction : int { kSum, kProduct, kLargest, kSmallest };  // HcclReduceOp
inline constexpr int kReductions = 4;

/// Writes the reduction of `count` elements of each part, taken in the order of the parts, so that
/// every rank that has the parts gets the same bits. `into` may be one of them.
void reduce(std::span<const std::byte* const> parts, std::byte* into, size_t count, int data_type,
            Reduction reduction);

// ---- groups (group.cpp) ----

/// What the ranks of a collective must agree on.
struct Signature {
  char operation[32];
  int32_t data_type;
  int32_t reduction;
  int32_t root;
  int32_t unused;
  uint64_t count;
};

/// What goes to one other rank and comes from it. `sends` and `receives` say whether that rank
/// counts on it, also where there is nothing in it.
struct Link {
  int rank;
  std::vector<std::span<const std::byte>> out{};
  std::vector<std::span<std::byte>> in{};
  bool sends = true;
  bool receives = true;
};

class Group {
 public:
  /// Meets the other ranks: returns when all are there.
  ///
  /// Throws GroupError when they are not within HCCL_CONNECT_TIMEOUT, or do not fit.
  Group(const std::string& name, int ranks, int rank);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return name_; }
  int ranks() const { return static_cast<int>(sockets_.size()); }
  int rank() const { return rank_; }

  /// Exchanges with other ranks, after the signatures were found equal. Called on a stream's
  /// thread. Throws TaskError, and the group is then of no use to any rank.
  void exchange(const Signature& signature, const std::vector<Link>& links);

  /// Ends an exchange that runs, and every later one.
  void cancel(const std::string& reason);

  /// Closes all that this process has of it: only cancel() and its destruction may follow.
  void close_all();

  /// The HcclResult of what went wrong with it; 0 while nothing has.
  int async_error() const { return error_.load(); }

 private:
  struct Transfer;
  void transfer(std::vector<Transfer> transfers);
  void meet(int listener);
  void check_same(const Signature& mine, const Signature& other, int rank) const;
  [[noreturn]] void fail(int result, const std::string& message);
  void close_sockets();

  const std::string name_;
  const int rank_;
  std::vector<int> sockets_;  // by rank; -1 for this one
  int cancelled_ = -1;        // an eventfd
  std::mutex exchange_mutex_;
  std::mutex reason_mutex_;
  std::string reason_;
  std::atomic<int> error_{0};
};

/// A name that no other group has.
std::string new_group_name();

// ---- communicators (communicators.cpp) ----

/// The group behind an HcclComm; null when there is none, and then set_error() was called.
std::shared_ptr<Group> find_group(const char* function, const void* communicator);

/// set_error() with "{function}: " in front.
inline int refuse(const char* function, int code, const std::string& message) {
  return set_error(code, std::string(function) + ": " + message);
}

}  // namespace hostcann::hccl
