// Address space for device memory and handles: reserved, inaccessible, never reused.
#include "runtime/addresses.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "hostcann/hostcann.h"

namespace hostcann::runtime {
namespace {

constexpr size_t kArenaBytes = size_t{1} << 36;
constexpr size_t kSmallestArenaBytes = size_t{1}
                                       << 24;  // under a limit of the address space (ulimit -v)

struct Arena {
  uintptr_t begin;
  uintptr_t end;
};

struct AddressSpace {
  std::mutex mutex;
  std::vector<Arena> arenas;  // the last one is being handed out
  uintptr_t next = 0;
};

AddressSpace& address_space() { return only<AddressSpace>(); }

bool reserve_arena(AddressSpace& space, size_t least_bytes) {
  for (size_t bytes = std::max(kArenaBytes, least_bytes);
       bytes >= least_bytes && bytes >= kSmallestArenaBytes; bytes /= 2) {
    void* begin =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) continue;
    auto address = reinterpret_cast<uintptr_t>(begin);
    space.arenas.push_back({address, address + bytes});
    space.next = address;
    return true;
  }
  return false;
}

}  // namespace

void* take_addresses(size_t bytes, size_t alignment) {
  AddressSpace& space = address_space();
  std::lock_guard<std::mutex> lock(space.mutex);
  for (int attempt = 0; attempt < 2; ++attempt) {
    uintptr_t begin = (space.next + alignment - 1) / alignment * alignment;
    if (!space.arenas.empty() && begin + bytes <= space.arenas.back().end) {
      space.next = begin + bytes;
      return reinterpret_cast<void*>(begin);
    }
    if (attempt == 0 && !reserve_arena(space, bytes + alignment)) return nullptr;
  }
  return nullptr;
}

bool is_device_address(const void* address) {
  AddressSpace& space = address_space();
  auto value = reinterpret_cast<uintptr_t>(address);
  std::lock_guard<std::mutex> lock(space.mutex);
  return std::any_of(space.arenas.begin(), space.arenas.end(), [value](const Arena& arena) {
    return value >= arena.begin && value < arena.end;
  });
}

}  // namespace hostcann::runtime
