#include "scratch.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <future>
#include <map>
#include <utility>

#include "cann.h"

namespace ascend_sample::npu {
namespace {

struct Block {
  at::Tensor memory;
  std::shared_ptr<std::mutex> order = std::make_shared<std::mutex>();
};

struct Blocks {
  std::mutex mutex;
  std::map<std::pair<c10::DeviceIndex, void*>, Block> by_stream;
};

/// Never destroyed: at the end of the process the allocator may be gone before static objects.
Blocks& blocks() {
  static auto* blocks = new Blocks;
  return *blocks;
}

bool is_captured(void* stream) {
  constexpr int kNone = 0;  // ACL_MODEL_RI_CAPTURE_STATUS_NONE
  int status = kNone;
  void* model = nullptr;
  return aclnn().aclmdlRICaptureGetInfo != nullptr &&
         aclnn().aclmdlRICaptureGetInfo(stream, &status, &model) == 0 && status != kNone;
}

/// A block that belongs to no pool of this thread's, a graph's or its caller's: it would be kept
/// when that is gone. The allocator chooses pools by thread.
at::Tensor allocate_outside_pools(int64_t bytes, const at::TensorOptions& options) {
  const c10::impl::VirtualGuardImpl streams(options.device().type());
  const c10::Stream stream = streams.getStream(options.device());
  return std::async(std::launch::async,
                    [&] {
                      const c10::StreamGuard guard(stream);
                      return at::empty({bytes}, options);
                    })
      .get();
}

}  // namespace

Scratch take_scratch(int64_t bytes, const at::Tensor& logits, void* stream) {
  const auto options = logits.options().dtype(at::kByte).requires_grad(false);
  if (is_captured(stream)) {
    return {at::empty({bytes}, options), nullptr};
  }
  const std::lock_guard lock(blocks().mutex);
  auto& block = blocks().by_stream[{logits.device().index(), stream}];
  if (!block.memory.defined() || block.memory.numel() < bytes) {
    block.memory.reset();  // first: the allocator may then make the new one of it
    block.memory = allocate_outside_pools(bytes, options);
  }
  return {block.memory, block.order};
}

void release_scratch() {
  const std::lock_guard lock(blocks().mutex);
  blocks().by_stream.clear();
}

}  // namespace ascend_sample::npu
