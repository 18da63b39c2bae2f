// Device memory that a call writes and that nobody reads after it: the k that the device can take,
// and the outputs that CANN insists on although nobody wants them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>

namespace ascend_sample::npu {

/// One block for each stream, kept from call to call and grown when a call needs more. The stream
/// orders the calls that share it. A call that is being captured gets memory of its own, from the
/// graph's pool: a replay may run beside calls on this stream.
struct Scratch {
  /// Held until the launch is queued: until then another thread may replace the stream's block.
  at::Tensor memory;
  /// Held while the launches of a call are put on the stream, so that no other call's come between
  /// them. Null for memory of the call's own.
  std::shared_ptr<std::mutex> order;
};

/// At least `bytes` on the device of `logits`, for a call on `stream`, which is current there.
Scratch take_scratch(int64_t bytes, const at::Tensor& logits, void* stream);

/// Gives the blocks of all streams back to the allocator.
void release_scratch();

}  // namespace ascend_sample::npu
