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

struct HostMemory {
  std::shared_mutex mutex;
  std::map<uintptr_t, size_t> blocks;  // of each address the bytes that were asked for
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
  auto next = all.blocks.upper_bound(begin);
  if (next == all.blocks.begin()) return false;
  auto block = std::prev(next);
  return begin + bytes <= block->first + block->second;
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
  munmap(host_pointer, whole_pages(found->second));
  all.blocks.erase(found);
  count_live(Live::kHostBlock, -1);
  return kSuccess;
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
