// Addresses that nobody can use, and the handles that are made of them.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hostcann::runtime {

/// Reserves `bytes` of address space that faults when the host touches it and that is never handed
/// out again. Null when the process cannot reserve any more.
void* take_addresses(size_t bytes, size_t alignment);

/// Whether the address lies in any range that take_addresses() has given.
bool is_device_address(const void* address);

/// Objects behind opaque handles. A handle is a number from take_addresses(): it is never used
/// twice, so a stale one is always recognised, and whoever dereferences it faults.
template <typename T>
class HandleTable {
 public:
  void* add(std::shared_ptr<T> object) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (next_ == end_) {
      constexpr size_t kHandles = 1 << 20;
      next_ = static_cast<char*>(take_addresses(kHandles * kStep, kStep));
      if (next_ == nullptr) throw std::bad_alloc();
      end_ = next_ + kHandles * kStep;
    }
    void* handle = next_;
    next_ += kStep;
    objects_.emplace(handle, std::move(object));
    return handle;
  }

  std::shared_ptr<T> find(const void* handle) const {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = objects_.find(const_cast<void*>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  std::shared_ptr<T> remove(const void* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = objects_.extract(const_cast<void*>(handle));
    return found ? std::move(found.mapped()) : nullptr;
  }

  std::vector<std::pair<void*, std::shared_ptr<T>>> entries() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return {objects_.begin(), objects_.end()};
  }

 private:
  static constexpr size_t kStep = 16;
  mutable std::mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<T>> objects_;
  char* next_ = nullptr;
  char* end_ = nullptr;
};

}  // namespace hostcann::runtime
