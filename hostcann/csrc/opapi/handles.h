// The tables behind CANN's opaque handles. Private to csrc/opapi.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hostcann/opapi.h"

namespace hostcann::opapi {

enum class HandleState { kAlive, kGone, kForeign };

/// Maps the handles of one type to their objects. A handle is `tag`, then a serial number that is
/// never given again, so that a stale handle cannot mean a younger object. The tag makes it a
/// non-canonical address: no pointer that a program owns equals it, and dereferencing it faults at
/// once.
template <typename Handle, typename Object>
class HandleTable {
 public:
  HandleTable(uint16_t tag, Live live) : tag_(tag), live_(live) {}

  Handle* insert(Object object) {
    auto shared = std::make_shared<const Object>(std::move(object));
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t handle = (static_cast<uint64_t>(tag_) << 48) | (++serial_ << 4);
    objects_.emplace(handle, std::move(shared));
    count_live(live_, 1);
    return reinterpret_cast<Handle*>(handle);
  }

  /// Null when the handle is not alive.
  std::shared_ptr<const Object> find(const Handle* handle) const {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  /// Gives a handle another object, if it is alive; who found the old one keeps that.
  void replace(const Handle* handle, Object object) {
    auto shared = std::make_shared<const Object>(std::move(object));
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
    if (found != objects_.end()) found->second = std::move(shared);
  }

  /// Ends the handle's life and returns its object: null when it was not alive. Of two threads, one
  /// gets it.
  std::shared_ptr<const Object> take(const Handle* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<const Object> object = std::move(found->second);
    objects_.erase(found);
    count_live(live_, -1);
    return object;
  }

  HandleState state(const Handle* handle) const {
    const uint64_t value = reinterpret_cast<uint64_t>(handle);
    const uint64_t serial = (value & 0xFFFF'FFFF'FFFFull) >> 4;
    std::lock_guard<std::mutex> lock(mutex_);
    if (objects_.count(value) != 0) return HandleState::kAlive;
    const bool given = value >> 48 == tag_ && (value & 15) == 0 && serial != 0 && serial <= serial_;
    return given ? HandleState::kGone : HandleState::kForeign;
  }

 private:
  const uint16_t tag_;
  const Live live_;
  mutable std::mutex mutex_;
  uint64_t serial_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<const Object>> objects_;
};

/// What phase 1 decided. Shared by the executor and by every run of its task: a captured graph
/// replays it later.
struct Plan {
  std::string op;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  uint64_t workspace_total = 0;  // the kernel's part and the system part; 0 when it needs none
  Kernel kernel;
  Traffic traffic;
  Caller caller;  // of phase 1: torch_npu calls phase 2 on a thread of its own
};

struct Executor {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<std::atomic<bool>> repeatable;
};

/// What stands behind a handle of each type, and what it is counted as.
template <typename Handle>
struct Behind;
template <typename Object_, uint16_t tag, Live live>
struct Kind {
  using Object = Object_;
  static constexpr uint16_t kTag = tag;
  static constexpr Live kLive = live;
};
template <>
struct Behind<aclTensor> : Kind<Operand, 0xAC01, Live::kTensor> {};
template <>
struct Behind<aclScalar> : Kind<Scalar, 0xAC02, Live::kScalar> {};
template <>
struct Behind<aclIntArray> : Kind<std::vector<int64_t>, 0xAC03, Live::kArray> {};
template <>
struct Behind<aclFloatArray> : Kind<std::vector<float>, 0xAC04, Live::kArray> {};
template <>
struct Behind<aclBoolArray> : Kind<std::vector<bool>, 0xAC05, Live::kArray> {};
template <>
struct Behind<aclTensorList> : Kind<std::vector<const aclTensor*>, 0xAC06, Live::kTensorList> {};
template <>
struct Behind<aclScalarList> : Kind<std::vector<const aclScalar*>, 0xAC07, Live::kTensorList> {};
template <>
struct Behind<aclOpExecutor> : Kind<Executor, 0xAC08, Live::kExecutor> {};

template <typename Handle>
using ObjectOf = typename Behind<Handle>::Object;

/// The table of a type. Never destroyed: torch_npu's queue thread may release tensors while the
/// process is already exiting.
template <typename Handle>
HandleTable<Handle, ObjectOf<Handle>>& table() {
  static auto* table =
      new HandleTable<Handle, ObjectOf<Handle>>(Behind<Handle>::kTag, Behind<Handle>::kLive);
  return *table;
}

/// "0xac01000000000010".
std::string hexadecimal(const void* handle);

/// Reads the number at `value`; false for a type that is no number's or bool's.
bool read_scalar(const void* value, DataType data_type, Scalar* scalar);

}  // namespace hostcann::opapi
