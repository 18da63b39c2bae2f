// The kernel without intrinsics, for the baseline of any machine.
#define ASCEND_SAMPLE_PLAIN
#define ASCEND_SAMPLE_TARGET plain
#include "cpu/kernel.h"
