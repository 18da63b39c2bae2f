// libhccl.so: communication between devices. hostcann has one device; every call says so. The list
// is what torch_npu looks up.
#include "hostcann/stubs/stub.h"

namespace {
constexpr int kHcclNotSupported = 5;  // HCCL_E_NOT_SUPPORT
}

/// torch_npu sets options (determinism) when it starts; without communication they have no effect.
extern "C" HOSTCANN_API int HcclSetConfig(int /*option*/, long long /*value*/) {
  return hostcann::kSuccess;
}

/// A bit set of what the library can do: nothing.
extern "C" HOSTCANN_API unsigned HcclGetCommConfigCapability() { return 0; }

HOSTCANN_STUB(HcclAllGather, kHcclNotSupported)
HOSTCANN_STUB(HcclAllGatherV, kHcclNotSupported)
HOSTCANN_STUB(HcclAllReduce, kHcclNotSupported)
HOSTCANN_STUB(HcclAlltoAll, kHcclNotSupported)
HOSTCANN_STUB(HcclAlltoAllV, kHcclNotSupported)
HOSTCANN_STUB(HcclAlltoAllVC, kHcclNotSupported)
HOSTCANN_STUB(HcclBatchSendRecv, kHcclNotSupported)
HOSTCANN_STUB(HcclBroadcast, kHcclNotSupported)
HOSTCANN_STUB(HcclCommActivateCommMemory, kHcclNotSupported)
HOSTCANN_STUB(HcclCommDeactivateCommMemory, kHcclNotSupported)
HOSTCANN_STUB(HcclCommDeregister, kHcclNotSupported)
HOSTCANN_STUB(HcclCommDestroy, kHcclNotSupported)
HOSTCANN_STUB(HcclCommExchangeMem, kHcclNotSupported)
HOSTCANN_STUB(HcclCommInitAll, kHcclNotSupported)
HOSTCANN_STUB(HcclCommInitClusterInfoConfig, kHcclNotSupported)
HOSTCANN_STUB(HcclCommInitRootInfo, kHcclNotSupported)
HOSTCANN_STUB(HcclCommInitRootInfoConfig, kHcclNotSupported)
HOSTCANN_STUB(HcclCommInitRootInfoScalable, kHcclNotSupported)
HOSTCANN_STUB(HcclCommRegister, kHcclNotSupported)
HOSTCANN_STUB(HcclCommResume, kHcclNotSupported)
HOSTCANN_STUB(HcclCommSetMemoryRange, kHcclNotSupported)
HOSTCANN_STUB(HcclCommUnsetMemoryRange, kHcclNotSupported)
HOSTCANN_STUB(HcclCommWorkingDevNicSet, kHcclNotSupported)
HOSTCANN_STUB(HcclCreateSubCommConfig, kHcclNotSupported)
HOSTCANN_STUB(HcclGetCommAsyncError, kHcclNotSupported)
HOSTCANN_STUB(HcclGetCommName, kHcclNotSupported)
HOSTCANN_STUB(HcclGetRootInfo, kHcclNotSupported)
HOSTCANN_STUB(HcclGetRootInfoScalable, kHcclNotSupported)
HOSTCANN_STUB(HcclGroupEnd, kHcclNotSupported)
HOSTCANN_STUB(HcclGroupStart, kHcclNotSupported)
HOSTCANN_STUB(HcclRecv, kHcclNotSupported)
HOSTCANN_STUB(HcclReduce, kHcclNotSupported)
HOSTCANN_STUB(HcclReduceScatter, kHcclNotSupported)
HOSTCANN_STUB(HcclReduceScatterV, kHcclNotSupported)
HOSTCANN_STUB(HcclScatter, kHcclNotSupported)
HOSTCANN_STUB(HcclSend, kHcclNotSupported)
