// libacl_op_compiler.so: compiling and running single operators at run time. Options are kept;
// running one is refused, always: a success without a result would leave garbage in the outputs.
#include <cstring>
#include <map>
#include <mutex>

#include "stubs/stub.h"

namespace {

struct Options {
  std::mutex mutex;
  std::map<int, std::string> values;
};

Options& options() { return hostcann::only<Options>(); }

int refuse_operator(const char* function, const char* operator_type) {
  return hostcann::set_error(
      hostcann::kInternalError,
      std::string(function) + ": " + (operator_type == nullptr ? "?" : operator_type) +
          ": hostcann runs aclnn operators only; this one has none that it emulates");
}

}  // namespace

extern "C" HOSTCANN_API int aclSetCompileopt(int option, const char* value) {
  if (value == nullptr)
    return hostcann::set_error(hostcann::kInvalidParam, "aclSetCompileopt: value must not be null");
  std::lock_guard<std::mutex> lock(options().mutex);
  options().values[option] = value;
  return hostcann::kSuccess;
}

extern "C" HOSTCANN_API size_t aclGetCompileoptSize(int option) {
  std::lock_guard<std::mutex> lock(options().mutex);
  return options().values[option].size() + 1;
}

extern "C" HOSTCANN_API int aclGetCompileopt(int option, char* value, size_t length) {
  std::lock_guard<std::mutex> lock(options().mutex);
  const std::string& text = options().values[option];
  if (value == nullptr || length <= text.size()) {
    return hostcann::set_error(
        hostcann::kInvalidParam,
        "aclGetCompileopt: value must have room for " + std::to_string(text.size() + 1) + " bytes");
  }
  std::memcpy(value, text.c_str(), text.size() + 1);
  return hostcann::kSuccess;
}

extern "C" HOSTCANN_API int aclopCompileAndExecute(const char* operator_type, ...) {
  return refuse_operator(__func__, operator_type);
}

extern "C" HOSTCANN_API int aclopCompileAndExecuteV2(const char* operator_type, ...) {
  return refuse_operator(__func__, operator_type);
}

HOSTCANN_STUB(aclGenGraphAndDumpForOp, hostcann::kInternalError)

/// Null, as CANN says for a failure.
extern "C" HOSTCANN_API void* aclCreateGraphDumpOpt() {
  hostcann::stubs::refuse(__func__, hostcann::kInternalError);
  return nullptr;
}

HOSTCANN_STUB(aclDestroyGraphDumpOpt, hostcann::kInternalError)
