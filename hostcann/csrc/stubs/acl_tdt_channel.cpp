// libacl_tdt_channel.so: channels that carry data between host and device programs. torch_npu's
// tensorpipe library is linked to it; nothing that hostcann runs calls it.
#include "stubs/stub.h"

HOSTCANN_STUB(acltdtCreateChannelWithCapacity, hostcann::kInternalError)
HOSTCANN_STUB(acltdtDestroyChannel, hostcann::kInternalError)
HOSTCANN_STUB(acltdtReceiveTensor, hostcann::kInternalError)
HOSTCANN_STUB(acltdtDestroyDataset, hostcann::kInternalError)
HOSTCANN_STUB(acltdtGetDimsFromItem, hostcann::kInternalError)
