// libacl_op_compiler.so: compiling and running single operators at run time. Options are kept.
// Identity runs, with which torch_npu takes tensors from one memory format to another; all others
// are refused: a success without a result would leave garbage in the outputs.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "stubs/stub.h"

struct aclTensorDesc;
struct aclDataBuffer;
extern "C" int aclGetTensorDescType(const aclTensorDesc* description);
extern "C" void* aclGetDataBufferAddr(const aclDataBuffer* buffer);
extern "C" size_t aclGetDataBufferSizeV2(const aclDataBuffer* buffer);

namespace {

struct Options {
  std::mutex mutex;
  std::map<int, std::string> values;
};

Options& options() { return hostcann::only<Options>(); }

/// The input's elements, in the output's format. A blocked format is a label here: the elements lie
/// in the order of their indices at the beginning of a storage that has room for the blocks, and no
/// aclnn operator takes such a tensor.
int change_format(const aclTensorDesc* from_description, const aclDataBuffer* from,
                  const aclTensorDesc* to_description, const aclDataBuffer* to, void* stream) {
  if (aclGetTensorDescType(from_description) != aclGetTensorDescType(to_description)) {
    return hostcann::set_error(hostcann::kInvalidParam,
                               "aclopCompileAndExecute: Identity: the types of x and y must agree");
  }
  const void* source = aclGetDataBufferAddr(from);
  void* target = aclGetDataBufferAddr(to);
  const size_t read = aclGetDataBufferSizeV2(from);
  const size_t written = aclGetDataBufferSizeV2(to);
  auto kernel = [=] {
    if (written == 0) return;
    std::byte* result = hostcann::resolve(target, written, "Identity: y");
    const size_t copied = std::min(read, written);
    if (copied > 0) std::memmove(result, hostcann::resolve(source, read, "Identity: x"), copied);
    std::memset(result + copied, 0, written - copied);
  };
  return hostcann::launch(stream, "Identity", kernel, {read, written}, hostcann::find_caller());
}

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

extern "C" HOSTCANN_API int aclopCompileAndExecute(
    const char* operator_type, int inputs, const aclTensorDesc* const input_descriptions[],
    const aclDataBuffer* const input_buffers[], int outputs,
    const aclTensorDesc* const output_descriptions[], aclDataBuffer* const output_buffers[],
    const void* /*attributes*/, int /*engine*/, int /*compile_flag*/, const char* /*path*/,
    void* stream) {
  if (operator_type != nullptr && std::string(operator_type) == "Identity" && inputs == 1 &&
      outputs == 1) {
    return change_format(input_descriptions[0], input_buffers[0], output_descriptions[0],
                         output_buffers[0], stream);
  }
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
