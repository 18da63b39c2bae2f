#include "cann.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <regex>
#include <sstream>

#include "checks.h"

namespace ascend_sample::npu {
namespace {

std::mutex mutex;
Configuration configured;  // guarded by mutex
std::atomic<const Aclnn*> found =
    nullptr;  // never freed: a queued launch may still use an earlier one

/// Finds functions in libraries that are asked in turn, and notes what was wrong with each when
/// none has one.
class Finder {
 public:
  explicit Finder(std::string& obstacle) : obstacle_(obstacle) {}

  template <typename Function>
  void find(Function*& function, const char* name, const std::vector<std::string>& libraries) {
    std::ostringstream tried;
    for (const auto& library : libraries) {
      void* handle = dlopen(library.c_str(),
                            RTLD_LAZY);  // never closed: CANN's libraries do not unload cleanly
      if (handle == nullptr) {
        tried << (tried.tellp() > 0 ? ", " : "") << library << " (" << dlerror() << ')';
        continue;
      }
      if (void* symbol = dlsym(handle, name); symbol != nullptr) {
        function = reinterpret_cast<Function*>(symbol);
        return;
      }
      tried << (tried.tellp() > 0 ? ", " : "") << library << " (does not export it)";
    }
    if (obstacle_.empty()) {
      obstacle_ =
          std::string(name) + " was not found in any of: " + tried.str() +
          ". Install a CANN toolkit and operator package that have it and source their set_env.sh";
    }
  }

 private:
  std::string& obstacle_;
};

const Aclnn* look_up(const Configuration& configuration) {
  auto* functions = new Aclnn{};
  functions->configuration = configuration;
  Finder finder(functions->obstacle);
#define ASCEND_SAMPLE_FIND(name, libraries) finder.find(functions->name, #name, libraries)
  const std::vector<std::string> runtime{configuration.runtime_library};
  ASCEND_SAMPLE_FIND(aclGetRecentErrMsg, runtime);
  ASCEND_SAMPLE_FIND(aclrtGetSocName, runtime);
  ASCEND_SAMPLE_FIND(aclCreateTensor, configuration.operator_libraries);
  ASCEND_SAMPLE_FIND(aclDestroyTensor, configuration.operator_libraries);
  ASCEND_SAMPLE_FIND(aclCreateScalar, configuration.operator_libraries);
  ASCEND_SAMPLE_FIND(aclDestroyScalar, configuration.operator_libraries);
  ASCEND_SAMPLE_FIND(aclDestroyAclOpExecutor, configuration.operator_libraries);
  ASCEND_SAMPLE_FIND(aclnnThresholdGetWorkspaceSize, configuration.operator_libraries);
  ASCEND_SAMPLE_FIND(aclnnThreshold, configuration.operator_libraries);
  ASCEND_SAMPLE_FIND(aclnnTopKTopPSampleGetWorkspaceSize, configuration.operator_libraries);
  ASCEND_SAMPLE_FIND(aclnnTopKTopPSample, configuration.operator_libraries);
#undef ASCEND_SAMPLE_FIND
  if (functions->obstacle.empty()) {
    const char* soc = functions->aclrtGetSocName();
    const std::string name = soc == nullptr ? "(unknown)" : soc;
    if (!std::regex_search(name, std::regex("^(?:" + configuration.supported_soc + ")"))) {
      functions->obstacle =
          "aclnnTopKTopPSample runs on Atlas A2 (Ascend910B1 to B4) and A3 (Ascend910_93), not on "
          "SoC " +
          name;
    }
  }
  return functions;
}

}  // namespace

void configure(Configuration configuration) {
  const std::lock_guard lock(mutex);
  configured = std::move(configuration);
  found.store(nullptr);
}

const Aclnn& aclnn() {
  if (const auto* functions = found.load(std::memory_order_acquire); functions != nullptr) {
    return *functions;
  }
  const std::lock_guard lock(mutex);
  if (found.load() == nullptr) {
    found.store(look_up(configured), std::memory_order_release);
  }
  return *found.load();
}

std::ostream& operator<<(std::ostream& stream, const LogitsLabel& label) {
  return stream << '[' << label.batch_size << ", " << label.vocab_size << "] "
                << (label.dtype == c10::kHalf ? "fp16" : "bf16");
}

std::string take_message() {
  const char* message = aclnn().aclGetRecentErrMsg();
  return message == nullptr ? "(no message)" : message;
}

void check_status(aclnnStatus status, const char* call, const char* stage,
                  const LogitsLabel& logits) {
  if (status == 0) {
    return;
  }
  const auto& names = aclnn().configuration.status_names;
  const auto name = names.find(status);
  TORCH_CHECK(false, kOperatorName, ": ", call, " failed in ", stage, ": ", status, " ",
              name == names.end() ? "(a status without a name here)" : name->second, ": ",
              take_message(), "; logits=", logits);
}

}  // namespace ascend_sample::npu
