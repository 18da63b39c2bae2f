// The older "single operator" interface. Of what it is told, that is kept which torch_npu reads
// back, or aclopCompileAndExecute (libacl_op_compiler.so) needs.
#include <vector>

#include "runtime/errors.h"

using namespace hostcann;           // NOLINT: this file holds C functions only
using namespace hostcann::runtime;  // NOLINT

/// CANN's opaque types, with contents of our own.
struct aclTensorDesc {
  int data_type;
  int format;
  std::vector<int64_t> sizes;
};

struct aclDataBuffer {
  void* data;
  size_t bytes;
};

struct aclopAttr {};

namespace {

int check_attribute(const char* function, const aclopAttr* attributes, const char* name) {
  if (attributes != nullptr && name != nullptr) return kSuccess;
  return fail(function, kInvalidParam, "attr and attrName must not be null");
}

}  // namespace

CANN_API aclTensorDesc* aclCreateTensorDesc(int data_type, int rank, const int64_t* sizes,
                                            int format) {
  if (rank < 0 || (rank > 0 && sizes == nullptr)) {
    fail(__func__, kInvalidParam, "numDims must be at least 0 and dims not null");
    return nullptr;
  }
  return new aclTensorDesc{data_type, format, std::vector<int64_t>(sizes, sizes + rank)};
}

CANN_API void aclDestroyTensorDesc(const aclTensorDesc* description) { delete description; }

CANN_API int aclGetTensorDescType(const aclTensorDesc* description) {
  constexpr int kUndefined = -1;
  return description == nullptr ? kUndefined : description->data_type;
}

CANN_API int aclGetTensorDescFormat(const aclTensorDesc* description) {
  constexpr int kUndefined = -1;
  return description == nullptr ? kUndefined : description->format;
}

CANN_API size_t aclGetTensorDescNumDims(const aclTensorDesc* description) {
  return description == nullptr ? 0 : description->sizes.size();
}

CANN_API int aclGetTensorDescDimV2(const aclTensorDesc* description, size_t index, int64_t* size) {
  if (description == nullptr || size == nullptr || index >= description->sizes.size()) {
    return fail(__func__, kInvalidParam,
                "desc and dimSize must not be null, and index must be below the rank");
  }
  *size = description->sizes[index];
  return kSuccess;
}

CANN_API void aclSetTensorDescName(aclTensorDesc* /*description*/, const char* /*name*/) {}

CANN_API int aclSetTensorFormat(aclTensorDesc* description, int format) {
  if (description == nullptr) return fail(__func__, kInvalidParam, "desc must not be null");
  description->format = format;
  return kSuccess;
}

CANN_API int aclSetTensorShape(aclTensorDesc* description, int rank, const int64_t* sizes) {
  if (description == nullptr || rank < 0 || (rank > 0 && sizes == nullptr)) {
    return fail(__func__, kInvalidParam, "desc and dims must not be null");
  }
  description->sizes.assign(sizes, sizes + rank);
  return kSuccess;
}

CANN_API int aclSetTensorPlaceMent(aclTensorDesc* description, int /*memory_type*/) {
  return description == nullptr ? fail(__func__, kInvalidParam, "desc must not be null") : kSuccess;
}

CANN_API aclDataBuffer* aclCreateDataBuffer(void* data, size_t bytes) {
  return new aclDataBuffer{data, bytes};
}

CANN_API void* aclGetDataBufferAddr(const aclDataBuffer* buffer) {
  return buffer == nullptr ? nullptr : buffer->data;
}

CANN_API size_t aclGetDataBufferSizeV2(const aclDataBuffer* buffer) {
  return buffer == nullptr ? 0 : buffer->bytes;
}

CANN_API int aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  delete buffer;
  return kSuccess;
}

CANN_API aclopAttr* aclopCreateAttr() { return new aclopAttr; }

CANN_API void aclopDestroyAttr(const aclopAttr* attributes) { delete attributes; }

#define HOSTCANN_ATTRIBUTE_SETTER(function, ...)                                  \
  CANN_API int function(aclopAttr* attributes, const char* name, ##__VA_ARGS__) { \
    return check_attribute(#function, attributes, name);                          \
  }

HOSTCANN_ATTRIBUTE_SETTER(aclopSetAttrBool, uint8_t)
HOSTCANN_ATTRIBUTE_SETTER(aclopSetAttrDataType, int)
HOSTCANN_ATTRIBUTE_SETTER(aclopSetAttrFloat, float)
HOSTCANN_ATTRIBUTE_SETTER(aclopSetAttrInt, int64_t)
HOSTCANN_ATTRIBUTE_SETTER(aclopSetAttrListBool, int, const uint8_t*)
HOSTCANN_ATTRIBUTE_SETTER(aclopSetAttrListFloat, int, const float*)
HOSTCANN_ATTRIBUTE_SETTER(aclopSetAttrListInt, int, const int64_t*)
HOSTCANN_ATTRIBUTE_SETTER(aclopSetAttrListListInt, int, const int*, const int64_t* const*)
HOSTCANN_ATTRIBUTE_SETTER(aclopSetAttrString, const char*)
