// Device memory. A block's address is inaccessible address space that is never reused; its bytes
// live elsewhere (the shadow), where only resolve() finds them. So a host program that dereferences
// a device pointer faults, and a kernel that uses a freed or foreign one is caught by name.
//
//   shadow:  | guard page | front zone | the block's bytes | back zone ... | guard page |
#include "runtime/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/contexts.h"
#include "runtime/errors.h"

namespace hostcann {
namespace {

using runtime::describe_address;
using runtime::fail;
using runtime::page_bytes;

constexpr size_t kAddressAlignment = 512;  // what CANN promises
constexpr size_t kAddressGap = 64 << 10;   // unused addresses behind every block
constexpr size_t kFrontZoneBytes = 512;    // keeps the shadow aligned like the address
constexpr size_t kBackZoneBytes = 512;     // at least: it ends with the page
constexpr unsigned char kZoneByte = 0xA5;
constexpr unsigned char kPoisonByte =
    0xDB;  // as fp16/bf16/fp32 an implausible negative number, as int an absurd index
constexpr uint64_t kDefaultCapacity = uint64_t{16} << 30;

class Block {
 public:
  Block(uintptr_t address, size_t bytes) : address_(address), bytes_(bytes) {
    const size_t inner = runtime::whole_pages(kFrontZoneBytes + bytes + kBackZoneBytes);
    mapped_bytes_ = inner + 2 * page_bytes();
    void* mapping = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return;
    mapping_ = static_cast<unsigned char*>(mapping);
    unsigned char* front = mapping_ + page_bytes();
    if (mprotect(front, inner, PROT_READ | PROT_WRITE) != 0) {
      munmap(mapping_, mapped_bytes_);
      mapping_ = nullptr;
      return;
    }
    shadow_ = front + kFrontZoneBytes;
    back_zone_bytes_ = inner - kFrontZoneBytes - bytes;
    std::memset(front, kZoneByte, kFrontZoneBytes);
    std::memset(shadow_, kPoisonByte, bytes);
    std::memset(shadow_ + bytes, kZoneByte, back_zone_bytes_);
    count_live(Live::kBlock, 1);
  }

  /// Bytes of the host's that the device reaches too: no zones, and not its own.
  Block(uintptr_t address, size_t bytes, void* host)
      : address_(address), bytes_(bytes), shadow_(static_cast<unsigned char*>(host)) {}

  ~Block() {
    if (mapping_ == nullptr) return;
    munmap(mapping_, mapped_bytes_);
    count_live(Live::kBlock, -1);
  }

  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  bool mapped() const { return mapping_ != nullptr; }
  uintptr_t address() const { return address_; }
  size_t bytes() const { return bytes_; }
  std::byte* shadow(uintptr_t address) const {
    return reinterpret_cast<std::byte*>(shadow_ + (address - address_));
  }

  /// Reports a written red zone and repairs it, so that one overrun is one violation.
  void check_zones() {
    if (!mapped()) return;
    check_zone(shadow_ - kFrontZoneBytes, kFrontZoneBytes, "in front of");
    check_zone(shadow_ + bytes_, back_zone_bytes_, "behind");
  }

 private:
  void check_zone(unsigned char* zone, size_t size, const char* where) {
    size_t written = 0;
    for (size_t i = 0; i < size; ++i) written += zone[i] != kZoneByte;
    if (written == 0) return;
    report_violation(Violation::kWorkspaceOverrun, std::to_string(written) + " bytes " + where +
                                                       " a block of " + std::to_string(bytes_) +
                                                       " bytes were written");
    std::memset(zone, kZoneByte, size);
  }

  const uintptr_t address_;
  const size_t bytes_;
  unsigned char* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  unsigned char* shadow_ = nullptr;
  size_t back_zone_bytes_ = 0;
};

struct Memory {
  std::shared_mutex mutex;
  std::map<uintptr_t, std::shared_ptr<Block>> blocks;
  std::map<uintptr_t, size_t> freed;  // for messages; addresses are never reused
  uint64_t used = 0;
  uint64_t capacity = kDefaultCapacity;
};

Memory& memory() { return only<Memory>(); }

struct RunningTask {
  std::string name;
  std::vector<std::shared_ptr<Block>> blocks;
};
thread_local RunningTask* running_task = nullptr;

/// The block that holds `address`; the caller holds the lock.
std::shared_ptr<Block> find_block(const Memory& all, uintptr_t address) {
  auto next = all.blocks.upper_bound(address);
  if (next == all.blocks.begin()) return nullptr;
  const std::shared_ptr<Block>& block = std::prev(next)->second;
  return address < block->address() + block->bytes() ? block : nullptr;
}

bool was_freed(const Memory& all, uintptr_t address) {
  auto next = all.freed.upper_bound(address);
  if (next == all.freed.begin()) return false;
  auto range = std::prev(next);
  return address < range->first + range->second;
}

int out_of_memory(const char* function, uint64_t bytes, const std::string& why) {
  // torch_npu recognises this code and wording, and raises torch's out-of-memory error.
  return fail(
      function, kOutOfMemory,
      "EL0004: Failed to allocate " + std::to_string(bytes) + " bytes of device memory: " + why);
}

/// An odd multiple of 512: nobody may count on more alignment than was promised. 0 when no
/// addresses are left.
uintptr_t take_device_address(size_t bytes) {
  void* base = runtime::take_addresses(bytes + kAddressGap, 2 * kAddressAlignment);
  return base == nullptr ? 0 : reinterpret_cast<uintptr_t>(base) + kAddressAlignment;
}

int allocate(const char* function, void** address, size_t bytes) {
  if (int status = runtime::check_usable(function)) return status;
  if (address == nullptr) return fail(function, kInvalidParam, "devPtr must not be null");
  *address = nullptr;
  if (bytes == 0) return fail(function, kInvalidParam, "size must be greater than 0, got 0");
  if (int status = runtime::require_context(function).status) return status;
  if (auto fault = take_injected_fault("malloc", function)) {
    if (fault->code == 0 || fault->code == kOutOfMemory)
      return out_of_memory(function, bytes, fault->message);
    return fail(function, fault->code, fault->message);
  }
  Memory& all = memory();
  {
    std::unique_lock<std::shared_mutex> lock(all.mutex);
    if (bytes > all.capacity || all.used > all.capacity - bytes) {
      return out_of_memory(
          function, bytes,
          std::to_string(all.used) + " of " + std::to_string(all.capacity) + " bytes are in use");
    }
    all.used += bytes;
  }
  const uintptr_t begin = take_device_address(bytes);
  std::shared_ptr<Block> block = begin == 0 ? nullptr : std::make_shared<Block>(begin, bytes);
  std::unique_lock<std::shared_mutex> lock(all.mutex);
  if (!block || !block->mapped()) {
    all.used -= bytes;
    return out_of_memory(function, bytes,
                         "the host has no memory or address space left for the emulation");
  }
  all.blocks.emplace(begin, std::move(block));
  *address = reinterpret_cast<void*>(begin);
  return kSuccess;
}

int release(const char* function, void* address) {
  Memory& all = memory();
  std::shared_ptr<Block> block;
  {
    std::unique_lock<std::shared_mutex> lock(all.mutex);
    auto found = all.blocks.find(reinterpret_cast<uintptr_t>(address));
    if (found == all.blocks.end()) {
      const char* why = was_freed(all, reinterpret_cast<uintptr_t>(address)) ? "was freed before"
                                                                             : "is of no block";
      return fail(function, runtime::kInvalidHandle,
                  "address " + describe_address(address) + " " + why);
    }
    block = std::move(found->second);
    all.freed.emplace(block->address(), block->bytes());
    if (block->mapped()) all.used -= block->bytes();
    all.blocks.erase(found);
  }
  block->check_zones();
  return kSuccess;
}

}  // namespace

std::byte* resolve(const void* device_address, size_t bytes, const std::string& what) {
  Memory& all = memory();
  auto begin = reinterpret_cast<uintptr_t>(device_address);
  std::shared_ptr<Block> block;
  bool freed = false;
  {
    std::shared_lock<std::shared_mutex> lock(all.mutex);
    block = find_block(all, begin);
    freed = !block && was_freed(all, begin);
  }
  if (!block) {
    std::string message =
        what + ": device address " + describe_address(device_address) +
        (freed ? " lies in memory that was freed" : " lies in no block of device memory");
    report_violation(Violation::kFreedOperand, message);
    throw TaskError(kDeviceTaskFailed, message);
  }
  size_t available = block->address() + block->bytes() - begin;
  if (bytes > available) {
    std::string message =
        what + ": " + std::to_string(bytes) + " bytes at " + describe_address(device_address) +
        " run past the end of their block, which has " + std::to_string(available) + " left";
    report_violation(Violation::kOutOfRangeOperand, message);
    throw TaskError(kDeviceTaskFailed, message);
  }
  std::byte* shadow = block->shadow(begin);
  if (running_task != nullptr) running_task->blocks.push_back(std::move(block));
  return shadow;
}

namespace runtime {

TaskScope::TaskScope(const std::string& name) { running_task = new RunningTask{name, {}}; }

TaskScope::~TaskScope() {
  RunningTask* task = std::exchange(running_task, nullptr);
  Memory& all = memory();
  for (const std::shared_ptr<Block>& block : task->blocks) {
    std::shared_lock<std::shared_mutex> lock(all.mutex);
    if (was_freed(all, block->address())) {
      report_violation(Violation::kFreedOperand,
                       task->name + ": a block was freed while the task was using it");
      break;
    }
  }
  delete task;
}

void* map_to_device(void* host, size_t bytes) {
  const uintptr_t begin = take_device_address(bytes);
  if (begin == 0) return nullptr;
  Memory& all = memory();
  std::unique_lock<std::shared_mutex> lock(all.mutex);
  all.blocks.emplace(begin, std::make_shared<Block>(begin, bytes, host));
  return reinterpret_cast<void*>(begin);
}

int unmap_from_device(const char* function, void* address) { return release(function, address); }

void check_red_zones() {
  Memory& all = memory();
  std::vector<std::shared_ptr<Block>> blocks;
  {
    std::shared_lock<std::shared_mutex> lock(all.mutex);
    for (const auto& entry : all.blocks) blocks.push_back(entry.second);
  }
  for (const std::shared_ptr<Block>& block : blocks) block->check_zones();
}

void set_memory_capacity(uint64_t bytes) {
  std::unique_lock<std::shared_mutex> lock(memory().mutex);
  memory().capacity = bytes;
}

uint64_t memory_capacity() {
  std::shared_lock<std::shared_mutex> lock(memory().mutex);
  return memory().capacity;
}

int64_t memory_in_use() {
  std::shared_lock<std::shared_mutex> lock(memory().mutex);
  return static_cast<int64_t>(memory().used);
}

void free_all_blocks() {
  Memory& all = memory();
  std::vector<uintptr_t> addresses;
  {
    std::shared_lock<std::shared_mutex> lock(all.mutex);
    for (const auto& entry : all.blocks) addresses.push_back(entry.first);
  }
  for (uintptr_t address : addresses) release("aclrtResetDevice", reinterpret_cast<void*>(address));
}

}  // namespace runtime
}  // namespace hostcann

using namespace hostcann;  // NOLINT: this file ends with CANN's C functions

/// Policies ask for huge pages and the like: nothing to emulate.
CANN_API int aclrtMalloc(void** device_pointer, size_t bytes, int /*policy*/) {
  return allocate(__func__, device_pointer, bytes);
}

CANN_API int aclrtMallocAlign32(void** device_pointer, size_t bytes, int /*policy*/) {
  return allocate(__func__, device_pointer, bytes);
}

CANN_API int aclrtFree(void* device_pointer) {
  if (int status = runtime::check_usable(__func__)) return status;
  if (device_pointer == nullptr) return fail(__func__, kInvalidParam, "devPtr must not be null");
  return release(__func__, device_pointer);
}

/// One kind of memory is emulated.
CANN_API int aclrtGetMemInfo(int /*kind*/, size_t* free_bytes, size_t* total_bytes) {
  if (free_bytes == nullptr || total_bytes == nullptr) {
    return fail(__func__, kInvalidParam, "free and total must not be null");
  }
  Memory& all = memory();
  std::shared_lock<std::shared_mutex> lock(all.mutex);
  *total_bytes = all.capacity;
  *free_bytes = all.capacity - std::min(all.capacity, all.used);
  return kSuccess;
}
