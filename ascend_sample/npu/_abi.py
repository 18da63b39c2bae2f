"""CANN's C interface, as far as this project calls it: declarations for cffi, status names and data type codes.

Written from CANN's public documents, including the parameter order of the operator's public header (its documentation
page prints an older one). Needs neither torch nor a CANN: the conformance suite loads this file by its path.
"""

from typing import Final

import cffi

DECLARATIONS: Final = """
typedef int aclError;
typedef int32_t aclnnStatus;
typedef void *aclrtStream;
typedef void *aclrtContext;
typedef struct aclTensor aclTensor;
typedef struct aclOpExecutor aclOpExecutor;

/* the dynamic loader, for symbols that are only looked for */
void *dlopen(const char *path, int flags);
void *dlsym(void *handle, const char *name);
char *dlerror(void);

/* libascendcl.so */
aclError aclInit(const char *config_path);
aclError aclFinalize(void);
const char *aclGetRecentErrMsg(void);
const char *aclrtGetSocName(void);
aclError aclrtGetDeviceCount(uint32_t *count);
aclError aclrtSetDevice(int32_t device);
aclError aclrtResetDevice(int32_t device);
aclError aclrtGetCurrentContext(aclrtContext *context);
aclError aclrtSetCurrentContext(aclrtContext context);
aclError aclrtMalloc(void **address, size_t bytes, int policy);
aclError aclrtFree(void *address);
aclError aclrtMallocHost(void **address, size_t bytes);
aclError aclrtFreeHost(void *address);
aclError aclrtMemcpy(void *to, size_t capacity, const void *from, size_t bytes, int kind);
aclError aclrtMemcpyAsync(void *to, size_t capacity, const void *from, size_t bytes, int kind, aclrtStream stream);
aclError aclrtMemset(void *to, size_t capacity, int32_t value, size_t bytes);
aclError aclrtGetMemInfo(int kind, size_t *free, size_t *total);
aclError aclrtCreateStream(aclrtStream *stream);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtSynchronizeDevice(void);

/* the operator libraries */
aclTensor *aclCreateTensor(const int64_t *view_dims, uint64_t view_rank, int data_type, const int64_t *strides,
                           int64_t offset, int format, const int64_t *storage_dims, uint64_t storage_rank,
                           void *storage);
aclnnStatus aclDestroyTensor(const aclTensor *tensor);
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);
aclnnStatus aclnnTopKTopPSampleGetWorkspaceSize(
    const aclTensor *logits, const aclTensor *top_k, const aclTensor *top_p, const aclTensor *q,
    double eps, bool is_need_logits, int64_t top_k_guess,
    const aclTensor *logits_select_idx, const aclTensor *logits_top_kp_select,
    uint64_t *workspace_size, aclOpExecutor **executor);
aclnnStatus aclnnTopKTopPSample(void *workspace, uint64_t workspace_size, aclOpExecutor *executor,
                                aclrtStream stream);
aclnnStatus aclnnTopKTopPSampleV2GetWorkspaceSize(
    const aclTensor *logits, const aclTensor *top_k, const aclTensor *top_p, const aclTensor *q,
    const aclTensor *min_ps, double eps, bool is_need_logits, int64_t top_k_guess, int64_t ks_max,
    bool input_is_logits, bool is_need_sample_result,
    const aclTensor *logits_select_idx, const aclTensor *logits_top_kp_select, const aclTensor *logits_idx,
    const aclTensor *logits_sort_masked, uint64_t *workspace_size, aclOpExecutor **executor);
aclnnStatus aclnnTopKTopPSampleV2(void *workspace, uint64_t workspace_size, aclOpExecutor *executor,
                                  aclrtStream stream);
aclnnStatus aclnnApplyTopKTopPGetWorkspaceSize(
    const aclTensor *logits, const aclTensor *p, const aclTensor *k, aclTensor *out,
    uint64_t *workspace_size, aclOpExecutor **executor);
aclnnStatus aclnnApplyTopKTopP(void *workspace, uint64_t workspace_size, aclOpExecutor *executor,
                               aclrtStream stream);
"""

ffi: Final = cffi.FFI()
ffi.cdef(DECLARATIONS)

SUCCESS: Final = 0

FORMAT_ND: Final = 2
"""The format of a plain strided tensor."""

PLAIN_FORMATS: Final = {0: "NCHW", 1: "NHWC", 2: "ND", 27: "NDHWC", 30: "NCDHW"}
"""torch_npu's formats whose memory is laid out as the strides say; the others are blocked."""

ADDRESS_ALIGNMENT: Final = 32
"""Bytes; CANN requires it of every tensor's storage address."""

DATA_TYPE_CODES: Final = {
    "float32": 0,
    "float16": 1,
    "int8": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 6,
    "uint16": 7,
    "uint32": 8,
    "int64": 9,
    "uint64": 10,
    "float64": 11,
    "bool": 12,
    "bfloat16": 27,
}
"""torch's (and numpy's) name of a dtype -> aclDataType."""

MALLOC_HUGE_FIRST: Final = 0
MEMCPY_HOST_TO_DEVICE: Final = 1
MEMCPY_DEVICE_TO_HOST: Final = 2
MEMORY_HBM: Final = 1

STATUS_NAMES: Final = {
    0: "ACL_SUCCESS",
    100000: "ACL_ERROR_INVALID_PARAM",
    100001: "ACL_ERROR_UNINITIALIZE",
    100002: "ACL_ERROR_REPEAT_INITIALIZE",
    107000: "ACL_ERROR_RT_PARAM_INVALID",
    107001: "ACL_ERROR_RT_INVALID_DEVICEID",
    107002: "ACL_ERROR_RT_CONTEXT_NULL",
    107003: "ACL_ERROR_RT_STREAM_CONTEXT",
    107017: "ACL_ERROR_RT_INVALID_HANDLE",
    107019: "ACL_ERROR_RT_WAIT_TIMEOUT",
    107020: "ACL_ERROR_RT_TASK_TIMEOUT",
    107022: "ACL_ERROR_RT_DEVICE_TASK_ABORT",
    161001: "ACLNN_ERR_PARAM_NULLPTR",
    161002: "ACLNN_ERR_PARAM_INVALID",
    200000: "ACL_ERROR_BAD_ALLOC",
    200001: "ACL_ERROR_API_NOT_SUPPORT",
    200002: "ACL_ERROR_INVALID_DEVICE",
    200003: "ACL_ERROR_MEMORY_ADDRESS_UNALIGNED",
    200005: "ACL_ERROR_INVALID_RESOURCE_HANDLE",
    200006: "ACL_ERROR_FEATURE_UNSUPPORTED",
    207000: "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
    207001: "ACL_ERROR_RT_MEMORY_ALLOCATION",
    207002: "ACL_ERROR_RT_MEMORY_FREE",
    207018: "ACL_ERROR_RT_DEVICE_OOM",
    361001: "ACLNN_ERR_RUNTIME_ERROR",
    500000: "ACL_ERROR_INTERNAL_ERROR",
    500001: "ACL_ERROR_FAILURE",
    500003: "ACL_ERROR_RT_FAILURE",
    507000: "ACL_ERROR_RT_INTERNAL_ERROR",
    507011: "ACL_ERROR_RT_MODEL_EXECUTE",
    507014: "ACL_ERROR_RT_AICORE_TIMEOUT",
    507015: "ACL_ERROR_RT_AICORE_EXCEPTION",
    507018: "ACL_ERROR_RT_AICPU_EXCEPTION",
    507034: "ACL_ERROR_RT_VECTOR_CORE_TIMEOUT",
    507035: "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION",
    507046: "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT",
    561000: "ACLNN_ERR_INNER",
    561001: "ACLNN_ERR_INNER_INFERSHAPE_ERROR",
    561002: "ACLNN_ERR_INNER_TILING_ERROR",
    561003: "ACLNN_ERR_INNER_FIND_KERNEL_ERROR",
    561101: "ACLNN_ERR_INNER_CREATE_EXECUTOR",
    561102: "ACLNN_ERR_INNER_NOT_TRANS_EXECUTOR",
    561103: "ACLNN_ERR_INNER_NULLPTR",
    561104: "ACLNN_ERR_INNER_WRONG_ATTR_INFO_SIZE",
    561107: "ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND",
    561112: "ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND",
    561113: "ACLNN_ERR_INNER_OP_FILE_INVALID",
}


def status_name(status: int) -> str:
    """Returns the documented name of a status, e.g. ``ACLNN_ERR_PARAM_NULLPTR`` for 161001."""
    return STATUS_NAMES.get(status, "(a status without a name here; see CANN's documents)")
