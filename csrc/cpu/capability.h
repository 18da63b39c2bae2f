// Which code path of the core this process takes.
#pragma once

#include "sample_rows.h"

namespace ascend_sample::cpu {

/// The widest that the machine has, unless the environment names another: decided once.
Capability capability_in_use();

}  // namespace ascend_sample::cpu
