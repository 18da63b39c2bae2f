// Host memory that is pinned: the one kind from which a copy is asynchronous.
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "runtime/errors.h"
#include "runtime/memory.h"

namespace hostcann::runtime {
namespace {

struct Registered {
  size_t bytes;
  void* mapped;  // the device's address of it; null for memory that is pinned only
};

struct HostMemory {
  std::shared_mutex mutex;
  std::map<uintptr_t, size_t> blocks;  // of each address the bytes that were asked for
  std::map<uintptr_t, Registered> registered;
};

HostMemory& host_memory() { return only<HostMemory>(); }

/// aclrtPtrAttributes as CANN lays it out.
struct PointerAttributes {
  uint32_t device;
  int location;
  uint32_t page_size;
  uint32_t reserved[4];
};
constexpr int kLocationHost = 0;
constexpr int kLocationDevice = 1;
constexpr int kLocationUnregistered = 2;

size_t bytes_of(size_t bytes) { return bytes; }
size_t bytes_of(const Registered& memory) { return memory.bytes; }

/// Whether one of the ranges holds [begin, begin + bytes).
template <typename Ranges>
bool holds(const Ranges& ranges, uintptr_t begin, size_t bytes) {
  auto next = ranges.upper_bound(begin);
  if (next == ranges.begin()) return false;
  auto range = std::prev(next);
  return begin + bytes <= range->first + bytes_of(range->second);
}

bool is_registered(const HostMemory& all, uintptr_t begin, size_t bytes) {
  auto next = all.registered.lower_bound(begin + bytes);
  return next != all.registered.begin() &&
         begin < std::prev(next)->first + std::prev(next)->second.bytes;
}

int register_host(const char* function, void* host, size_t bytes, bool map, void** mapped) {
  if (int status = check_usable(function)) return status;
  if (host == nullptr) return fail(function, kInvalidParam, "ptr must not be null");
  if (bytes == 0) return fail(function, kInvalidParam, "size must be greater than 0, got 0");
  const auto begin = reinterpret_cast<uintptr_t>(host);
  if (map && begin % page_bytes() != 0) {
    return fail(function, kInvalidParam,
                "ptr must begin a page to be mapped, got " + describe_address(host));
  }
  HostMemory& all = host_memory();
  const std::unique_lock lock(all.mutex);
  if (is_registered(all, begin, bytes)) {
    return fail(function, kInvalidParam,
                "memory at " + describe_address(host) + " is registered already");
  }
  *mapped = map ? map_to_device(host, bytes) : nullptr;
  if (map && *mapped == nullptr) {
    return fail(function, kOutOfMemory, "no addresses of the device are left");
  }
  all.registered[begin] = {bytes, *mapped};
  return kSuccess;
}

}  // namespace

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t whole_pages(size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

std::string describe_address(const void* address) {
  char text[32];
  std::snprintf(text, sizeof(text), "%p", address);
  return text;
}

bool is_pinned(const void* address, size_t bytes) {
  HostMemory& all = host_memory();
  auto begin = reinterpret_cast<uintptr_t>(address);
  const std::shared_lock lock(all.mutex);
  return holds(all.blocks, begin, bytes) || holds(all.registered, begin, bytes);
}

}  // namespace hostcann::runtime

using namespace hostcann;           // NOLINT: this file ends with CANN's C functions
using namespace hostcann::runtime;  // NOLINT

CANN_API int aclrtMallocHost(void** host_pointer, size_t bytes) {
  if (int status = check_usable(__func__)) return status;
  if (host_pointer == nullptr) return fail(__func__, kInvalidParam, "hostPtr must not be null");
  *host_pointer = nullptr;
  if (bytes == 0) return fail(__func__, kInvalidParam, "size must be greater than 0, got 0");
  void* mapping =
      mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return fail(__func__, kOutOfMemory,
                "no " + std::to_string(bytes) + " bytes of host memory are left");
  }
  HostMemory& all = host_memory();
  const std::unique_lock lock(all.mutex);
  all.blocks[reinterpret_cast<uintptr_t>(mapping)] = bytes;
  count_live(Live::kHostBlock, 1);
  *host_pointer = mapping;
  return kSuccess;
}

CANN_API int aclrtFreeHost(void* host_pointer) {
  if (int status = check_usable(__func__)) return status;
  HostMemory& all = host_memory();
  const std::unique_lock lock(all.mutex);
  auto found = all.blocks.find(reinterpret_cast<uintptr_t>(host_pointer));
  if (found == all.blocks.end()) {
    return fail(__func__, kInvalidParam,
                "hostPtr " + describe_address(host_pointer) + " is not from aclrtMallocHost");
  }
  if (is_registered(all, found->first, found->second)) {
    return fail(__func__, kInvalidParam,
                "hostPtr " + describe_address(host_pointer) + " is still registered");
  }
  munmap(host_pointer, whole_pages(found->second));
  all.blocks.erase(found);
  count_live(Live::kHostBlock, -1);
  return kSuccess;
}

/// Type 0 (ACL_HOST_REGISTER_MAPPED) is the only one.
CANN_API int aclrtHostRegister(void* host, uint64_t bytes, int type, void** device_pointer) {
  if (device_pointer == nullptr) return fail(__func__, kInvalidParam, "devPtr must not be null");
  *device_pointer = nullptr;
  if (type != 0)
    return fail(__func__, kInvalidParam, "type must be 0, got " + std::to_string(type));
  return register_host(__func__, host, bytes, /*map=*/true, device_pointer);
}

CANN_API int aclrtHostRegisterV2(void* host, uint64_t bytes, uint32_t flags) {
  constexpr uint32_t kMapped = 0x2;
  constexpr uint32_t kPinned = 0x10000000;
  if (flags == 0 || (flags & ~(kMapped | kPinned)) != 0) {
    return fail(__func__, kInvalidParam,
                "flag must be ACL_HOST_REG_MAPPED, ACL_HOST_REG_PINNED or both, got " +
                    std::to_string(flags));
  }
  void* mapped = nullptr;  // aclrtHostGetDevicePointer, which would tell it, is not emulated
  return register_host(__func__, host, bytes, (flags & kMapped) != 0, &mapped);
}

CANN_API int aclrtHostUnregister(void* host) {
  if (int status = check_usable(__func__)) return status;
  HostMemory& all = host_memory();
  const std::unique_lock lock(all.mutex);
  auto found = all.registered.find(reinterpret_cast<uintptr_t>(host));
  if (found == all.registered.end()) {
    return fail(__func__, kInvalidParam, "ptr " + describe_address(host) + " is not registered");
  }
  void* mapped = found->second.mapped;
  all.registered.erase(found);
  return mapped == nullptr ? kSuccess : unmap_from_device(__func__, mapped);
}

CANN_API int aclrtPointerGetAttributes(const void* pointer, PointerAttributes* attributes) {
  if (pointer == nullptr || attributes == nullptr) {
    return fail(__func__, kInvalidParam, "ptr and attributes must not be null");
  }
  *attributes = {};
  attributes->location = is_pinned(pointer, 1)        ? kLocationHost
                         : is_device_address(pointer) ? kLocationDevice
                                                      : kLocationUnregistered;
  attributes->page_size = static_cast<uint32_t>(page_bytes());
  return kSuccess;
}
