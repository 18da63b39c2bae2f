// The core as torch calls it: which code path this process takes, and on which threads.
#pragma once

#include <ATen/core/Tensor.h>

#include "sample_rows.h"

namespace ascend_sample::cpu {

/// The widest that the machine has, unless the environment names another: decided once.
Capability capability_in_use();

/// Samples all rows of a batch with it, on torch's threads.
void sample_batch(const Batch& batch);

/// Of logits, whose dtype was checked.
LogitsType type_of(at::ScalarType type);

}  // namespace ascend_sample::cpu
