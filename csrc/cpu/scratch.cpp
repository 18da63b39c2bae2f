#include "cpu/scratch.h"

#include <cstring>
#include <new>

namespace ascend_sample::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

void Scratch::Free::operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }

std::byte* Scratch::reserve(Slot slot, size_t bytes) {
  Block& block = blocks_[slot];
  if (block.bytes < bytes) {
    block.memory.reset();
    block.bytes = 0;  // in case there is no memory: the next call must not think that it has some
    block.memory.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
    block.bytes = bytes;
  }
  return block.memory.get();
}

std::byte* Scratch::reserve_zeros(Slot slot, size_t bytes) {
  const bool grows = blocks_[slot].bytes < bytes;
  std::byte* const memory = reserve(slot, bytes);
  if (grows) {
    std::memset(memory, 0, bytes);
  }
  return memory;
}

}  // namespace ascend_sample::cpu
