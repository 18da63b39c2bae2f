// libhcomm.so: where torch_npu looks for the calls that group sends and receives. They are
// libhccl.so's, which is found through this library because it needs it.
#include "hostcann/hostcann.h"

extern "C" int HcclGroupStart();

/// Tells, in a list of symbols, that the library is not CANN's; and holds on to libhccl.so.
extern "C" HOSTCANN_API const void* hostcann_hcomm() {
  return reinterpret_cast<const void*>(&HcclGroupStart);  // NOLINT: an address to be looked at
}
