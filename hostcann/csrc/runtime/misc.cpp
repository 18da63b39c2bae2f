// The rest of what programs link against or look up: what is known without a device, options
// without an effect here, and the names that only say that they are not emulated.
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "runtime/activities.h"
#include "runtime/errors.h"
#include "runtime/memory.h"
#include "runtime/settings.h"
#include "runtime/streams.h"

using namespace hostcann;           // NOLINT: this file holds C functions only
using namespace hostcann::runtime;  // NOLINT

namespace {

// Published figures of an Ascend 910B3; the emulation itself does not use them.
constexpr int64_t kCubeCores = 20;
constexpr int64_t kVectorCores = 40;
constexpr int64_t kL2Bytes = int64_t{192} << 20;

/// aclCANNPackageVersion as CANN lays it out.
struct PackageVersion {
  char version[128];
  char major[64];
  char minor[64];
  char release[64];
  char patch[64];
  char reserved[128];
};

struct Options {
  std::mutex mutex;
  std::map<int, int64_t> values;
};

Options& system_options() { return only<Options>(); }

}  // namespace

CANN_API const char* aclrtGetSocName() { return soc_name(); }

/// All of hostcann has one version.
CANN_API int aclsysGetVersionStr(char* /*package*/, char* version) {
  if (version == nullptr) return fail(__func__, kInvalidParam, "versionStr must not be null");
  constexpr size_t kVersionBytes = 128;
  std::snprintf(version, kVersionBytes, "%s", settings().cann_version.c_str());
  return kSuccess;
}

CANN_API int aclsysGetCANNVersion(int /*package*/, PackageVersion* version) {
  if (version == nullptr) return fail(__func__, kInvalidParam, "version must not be null");
  *version = {};
  std::snprintf(version->version, sizeof(version->version), "%s", settings().cann_version.c_str());
  std::sscanf(settings().cann_version.c_str(), "%63[^.].%63[^.].%63[^.].%63s", version->major,
              version->minor, version->release, version->patch);
  return kSuccess;
}

CANN_API int aclGetDeviceCapability(uint32_t /*device*/, int what, int64_t* value) {
  if (value == nullptr) return fail(__func__, kInvalidParam, "value must not be null");
  constexpr int64_t kValues[] = {kCubeCores, kVectorCores, kL2Bytes};
  if (what < 0 || what > 2) {
    return fail(__func__, kInvalidParam,
                "deviceInfo must be 0, 1 or 2, got " + std::to_string(what));
  }
  *value = kValues[what];
  return kSuccess;
}

/// aclrtDevAttr: the attributes that torch_npu asks for.
CANN_API int aclrtGetDeviceInfo(uint32_t /*device*/, int attribute, int64_t* value) {
  if (value == nullptr) return fail(__func__, kInvalidParam, "value must not be null");
  constexpr int kAiCores = 101, kCube = 102, kVector = 201, kMemory = 301, kL2 = 302;
  switch (attribute) {
    case kAiCores:
    case kCube:
      *value = kCubeCores;
      return kSuccess;
    case kVector:
      *value = kVectorCores;
      return kSuccess;
    case kMemory:
      *value = static_cast<int64_t>(memory_capacity());
      return kSuccess;
    case kL2:
      *value = kL2Bytes;
      return kSuccess;
    default:
      return fail(__func__, kFeatureNotSupported,
                  "attr " + std::to_string(attribute) + " is not emulated");
  }
}

/// Infinities, bfloat16 and compiled kernels: an Ascend910B has all three.
CANN_API int aclGetCannAttribute(int attribute, int32_t* value) {
  if (value == nullptr) return fail(__func__, kInvalidParam, "value must not be null");
  if (attribute < 0 || attribute > 2) {
    return fail(__func__, kInvalidParam,
                "cannAttr must be 0, 1 or 2, got " + std::to_string(attribute));
  }
  *value = 1;
  return kSuccess;
}

CANN_API int aclGetCannAttributeList(const int** list, size_t* count) {
  if (list == nullptr || count == nullptr)
    return fail(__func__, kInvalidParam, "cannAttrList and num must not be null");
  static const int attributes[] = {0, 1, 2};
  *list = attributes;
  *count = 3;
  return kSuccess;
}

CANN_API int aclrtDeviceCanAccessPeer(int32_t* can_access, int32_t device, int32_t peer) {
  if (can_access == nullptr) return fail(__func__, kInvalidParam, "canAccessPeer must not be null");
  *can_access = device != peer;
  return kSuccess;
}

CANN_API int aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t /*flags*/) {
  return fail(__func__, kInvalidDevice,
              "there is no device " + std::to_string(peer) + " to access");
}

CANN_API int aclrtGetLogicDevIdByUserDevId(int32_t user_device, int32_t* logic_device) {
  if (logic_device == nullptr) return fail(__func__, kInvalidParam, "logicDevId must not be null");
  *logic_device = user_device;
  return kSuccess;
}

CANN_API int aclrtSetSysParamOpt(int option, int64_t value) {
  std::lock_guard<std::mutex> lock(system_options().mutex);
  system_options().values[option] = value;
  return kSuccess;
}

CANN_API int aclrtGetSysParamOpt(int option, int64_t* value) {
  if (value == nullptr) return fail(__func__, kInvalidParam, "value must not be null");
  std::lock_guard<std::mutex> lock(system_options().mutex);
  *value = system_options().values[option];  // every option is off until it is set
  return kSuccess;
}

CANN_API int aclrtCtxSetSysParamOpt(int option, int64_t value) {
  return aclrtSetSysParamOpt(option, value);
}
CANN_API int aclrtCtxGetSysParamOpt(int option, int64_t* value) {
  return aclrtGetSysParamOpt(option, value);
}

// Timeouts and the saturation mode change nothing here: tasks have no time limit and float
// arithmetic is the host's.
CANN_API int aclrtSetDeviceSatMode(int mode) {
  constexpr int kModes = 3;
  if (mode >= 0 && mode < kModes) return kSuccess;
  return fail(__func__, kInvalidParam, "mode must be 0, 1 or 2, got " + std::to_string(mode));
}

CANN_API int aclrtSetOpWaitTimeout(uint32_t /*seconds*/) { return kSuccess; }

CANN_API int aclrtSetOpExecuteTimeOut(uint32_t /*seconds*/) { return kSuccess; }

CANN_API int aclrtSetOpExecuteTimeOutV2(uint64_t microseconds, uint64_t* actual) {
  if (actual != nullptr) *actual = microseconds;
  return kSuccess;
}

CANN_API int aclrtSetStreamOverflowSwitch(void* handle, uint32_t /*flag*/) {
  return find_stream(__func__, handle).status;
}

CANN_API int aclrtGetStreamOverflowSwitch(void* handle, uint32_t* flag) {
  if (flag == nullptr) return fail(__func__, kInvalidParam, "flag must not be null");
  *flag = 0;
  return find_stream(__func__, handle).status;
}

/// CANN writes to its log files; here HOSTCANN_LOG=LEVEL (0 debug ... 3 error) prints to the
/// standard error.
CANN_API void aclAppLog(int level, const char* function, const char* file, uint32_t line,
                        const char* format, ...) {
  if (level < settings().log_level) return;
  std::fprintf(stderr, "[hostcann log %d] %s:%u %s: ", level, file, line, function);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
}

// torch_npu registers itself with the profiler when it is loaded, and asks for a time at every
// launch.
CANN_API int32_t MsprofRegisterCallback(uint32_t /*module*/, void* /*callback*/) {
  return kSuccess;
}

CANN_API uint64_t MsprofSysCycleTime() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

CANN_API uint64_t MsprofGetHashId(const char* text, size_t length) {
  return text == nullptr ? 0 : std::hash<std::string>{}(std::string(text, length));
}

/// A name that exists so that programs link; every call is refused, and the message names the
/// function. The arguments are not read, so they are not declared.
#define HOSTCANN_NOT_EMULATED(name) \
  CANN_API int name() { return not_emulated(#name); }

HOSTCANN_NOT_EMULATED(MsprofReportAdditionalInfo)
HOSTCANN_NOT_EMULATED(MsprofReportApi)
HOSTCANN_NOT_EMULATED(MsprofReportCompactInfo)
HOSTCANN_NOT_EMULATED(aclmdlFinalizeDump)
HOSTCANN_NOT_EMULATED(aclmdlInitDump)
HOSTCANN_NOT_EMULATED(aclmdlSetDump)
HOSTCANN_NOT_EMULATED(aclmdlRIAddCondTask)
HOSTCANN_NOT_EMULATED(aclmdlRICaptureToModelRIBegin)
HOSTCANN_NOT_EMULATED(aclmdlRICondHandleCreate)
HOSTCANN_NOT_EMULATED(aclmdlRICondHandleGetCondPtr)
HOSTCANN_NOT_EMULATED(aclmdlRIDebugJsonPrint)
HOSTCANN_NOT_EMULATED(aclmdlRIDebugPrint)
HOSTCANN_NOT_EMULATED(aclopStartDumpArgs)
HOSTCANN_NOT_EMULATED(aclopStopDumpArgs)
HOSTCANN_NOT_EMULATED(aclrtBinaryGetFunction)
HOSTCANN_NOT_EMULATED(aclrtBinaryLoadFromData)
HOSTCANN_NOT_EMULATED(aclrtDeviceGetBareTgid)
HOSTCANN_NOT_EMULATED(aclrtFreePhysical)
HOSTCANN_NOT_EMULATED(aclrtGetDeviceUtilizationRate)
HOSTCANN_NOT_EMULATED(aclrtGetFunctionAddr)
HOSTCANN_NOT_EMULATED(aclrtIpcGetEventHandle)
HOSTCANN_NOT_EMULATED(aclrtIpcOpenEventHandle)
HOSTCANN_NOT_EMULATED(aclrtLaunchCallback)
HOSTCANN_NOT_EMULATED(aclrtLaunchKernelWithHostArgs)
HOSTCANN_NOT_EMULATED(aclrtMallocPhysical)
HOSTCANN_NOT_EMULATED(aclrtMapMem)
HOSTCANN_NOT_EMULATED(aclrtMemExportToShareableHandle)
HOSTCANN_NOT_EMULATED(aclrtMemImportFromShareableHandle)
HOSTCANN_NOT_EMULATED(aclrtMemSetPidToShareableHandle)
HOSTCANN_NOT_EMULATED(aclrtProcessReport)
HOSTCANN_NOT_EMULATED(aclrtReleaseMemAddress)
HOSTCANN_NOT_EMULATED(aclrtReserveMemAddress)
HOSTCANN_NOT_EMULATED(aclrtSubscribeReport)
HOSTCANN_NOT_EMULATED(aclrtUnSubscribeReport)
HOSTCANN_NOT_EMULATED(aclrtUnmapMem)
HOSTCANN_NOT_EMULATED(rtDevBinaryRegister)
HOSTCANN_NOT_EMULATED(rtFunctionRegister)
HOSTCANN_NOT_EMULATED(rtGetC2cCtrlAddr)
HOSTCANN_NOT_EMULATED(rtKernelLaunch)
