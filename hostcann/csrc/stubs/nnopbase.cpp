// libnnopbase.so: where torch_npu looks for what operators have in common when it captures their
// calls in a graph. They are libopapi.so's, which is found through this library as it needs it.
#include "hostcann/hostcann.h"

extern "C" int aclDestroyTensor(const void*);

/// Tells, in a list of symbols, that the library is not CANN's; and holds on to libopapi.so.
extern "C" HOSTCANN_API const void* hostcann_nnopbase() {
  return reinterpret_cast<const void*>(&aclDestroyTensor);  // NOLINT: an address to be looked at
}
