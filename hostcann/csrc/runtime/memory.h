// The device's memory, and the host's that it can reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "hostcann/hostcann.h"

namespace hostcann::runtime {

/// While it lives, blocks that resolve() finds on this thread stay mapped even when they are freed
/// meanwhile.
class TaskScope {
 public:
  explicit TaskScope(const std::string& name);
  ~TaskScope();
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;
};

/// Reports every red zone that was written since it was last looked at.
void check_red_zones();
void set_memory_capacity(uint64_t bytes);
uint64_t memory_capacity();
int64_t memory_in_use();
void free_all_blocks();

/// Gives host memory an address of the device's too, until unmap_from_device(); null when none are
/// left.
void* map_to_device(void* host, size_t bytes);
int unmap_from_device(const char* function, void* address);

/// Whether [address, address + bytes) is host memory from aclrtMallocHost, or registered.
bool is_pinned(const void* address, size_t bytes);
size_t page_bytes();
size_t whole_pages(size_t bytes);
std::string describe_address(const void* address);

}  // namespace hostcann::runtime
