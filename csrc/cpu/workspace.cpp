#include "cpu/workspace.h"

#include <new>
#include <utility>

namespace ascend_sample::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

Block::~Block() { ::operator delete(data_, kAlignment); }

void Block::grow(size_t bytes) {
  bytes_ = 0;  // in case there is no memory: the next call must not think that it has some
  ::operator delete(std::exchange(data_, nullptr), kAlignment);
  data_ = ::operator new(bytes, kAlignment);
  bytes_ = bytes;
}

}  // namespace ascend_sample::cpu
