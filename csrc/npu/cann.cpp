#include "cann.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <regex>
#include <sstream>

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
  /// `obstacle` is appended to when it is still empty; `found_in` says which CANN has what is
  /// looked for.
  explicit Finder(std::string& obstacle, std::string found_in = "")
      : obstacle_(obstacle), found_in_(std::move(found_in)) {}

  template <typename Function>
  void find(Function*& function, const std::string& name,
            const std::vector<std::string>& libraries) {
    std::ostringstream tried;
    for (const auto& library : libraries) {
      tried << (tried.tellp() > 0 ? ", " : "") << library;
      void* handle = dlopen(library.c_str(),
                            RTLD_LAZY);  // never closed: CANN's libraries do not unload cleanly
      if (handle == nullptr) {
        tried << " (" << dlerror() << ')';
        continue;
      }
      if (void* symbol = dlsym(handle, name.c_str()); symbol != nullptr) {
        function = reinterpret_cast<Function*>(symbol);
        return;
      }
      tried << " (does not export it)";
    }
    if (obstacle_.empty()) {
      obstacle_ =
          name + " was not found in any of: " + tried.str() +
          ". Install a CANN toolkit and operator package that have it and source their set_env.sh";
      if (!found_in_.empty()) {
        obstacle_ += ". " + found_in_;
      }
    }
  }

 private:
  std::string& obstacle_;
  const std::string found_in_;
};

AclnnOperator look_up_operator(const OperatorFacts& facts,
                               const std::vector<std::string>& libraries,
                               const std::string& common_obstacle, const std::string& soc) {
  AclnnOperator found;
  found.phase1_name = facts.name + "GetWorkspaceSize";
  found.phase2_name = facts.name;
  found.takes_any_k = facts.takes_any_k;
  found.checks_unwanted = facts.checks_unwanted;
  found.most_rows = facts.most_rows;
  found.obstacle = common_obstacle;
  Finder finder(found.obstacle, facts.found_in);
  if (facts.companion.has_value()) {
    void* companion = nullptr;
    finder.find(companion, *facts.companion, libraries);
  }
  finder.find(found.phase1, found.phase1_name, libraries);
  finder.find(found.phase2, found.phase2_name, libraries);
  if (found.obstacle.empty() &&
      !std::regex_search(soc, std::regex("^(?:" + facts.supported_soc + ")"))) {
    found.obstacle = facts.name + " runs on " + facts.devices + ", not on SoC " + soc;
  }
  for (const auto dtype : {c10::kFloat, c10::kHalf, c10::kBFloat16}) {
    if (std::find(facts.dtypes.begin(), facts.dtypes.end(), c10::getDtypeNames(dtype).first) !=
        facts.dtypes.end()) {
      found.dtypes.push_back(dtype);
    }
  }
  for (const auto& dtype : facts.dtypes) {
    found.dtypes_in_words += (found.dtypes_in_words.empty() ? "" : " and ") + dtype;
  }
  return found;
}

const Aclnn* look_up(const Configuration& configuration) {
  auto* functions = new Aclnn{};
  functions->configuration = configuration;
  const std::vector<std::string> runtime{configuration.runtime_library};
  const std::vector<std::string>& operators = configuration.operator_libraries;
  std::string obstacle;
  Finder finder(obstacle);
#define ASCEND_SAMPLE_FIND(finder, name, libraries) finder.find(functions->name, #name, libraries)
  ASCEND_SAMPLE_FIND(finder, aclGetRecentErrMsg, runtime);
  ASCEND_SAMPLE_FIND(finder, aclrtGetSocName, runtime);
  ASCEND_SAMPLE_FIND(finder, aclCreateTensor, operators);
  ASCEND_SAMPLE_FIND(finder, aclDestroyTensor, operators);
  ASCEND_SAMPLE_FIND(finder, aclCreateScalar, operators);
  ASCEND_SAMPLE_FIND(finder, aclDestroyScalar, operators);
  ASCEND_SAMPLE_FIND(finder, aclDestroyAclOpExecutor, operators);
  ASCEND_SAMPLE_FIND(finder, aclnnThresholdGetWorkspaceSize, operators);
  ASCEND_SAMPLE_FIND(finder, aclnnThreshold, operators);
  std::string no_obstacle;
  Finder optional(no_obstacle);
  ASCEND_SAMPLE_FIND(optional, aclmdlRICaptureGetInfo, runtime);
#undef ASCEND_SAMPLE_FIND

  const char* soc = functions->aclrtGetSocName == nullptr ? nullptr : functions->aclrtGetSocName();
  for (const auto& [op, facts] : configuration.operators) {
    functions->operators[op] =
        look_up_operator(facts, operators, obstacle, soc == nullptr ? "(unknown)" : soc);
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

std::string AclnnOperator::obstacle_for(c10::ScalarType dtype) const {
  if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) {
    return phase2_name + " takes " + dtypes_in_words + " logits, not " + c10::toString(dtype);
  }
  return obstacle;
}

std::ostream& operator<<(std::ostream& stream, const CallLabel& label) {
  const char* dtype = label.dtype == c10::kHalf       ? "fp16"
                      : label.dtype == c10::kBFloat16 ? "bf16"
                                                      : "fp32";
  return stream << '[' << label.batch_size << ", " << label.vocab_size << "] " << dtype;
}

std::string take_message() {
  const char* message = aclnn().aclGetRecentErrMsg();
  std::string text = message == nullptr ? "" : message;
  text.erase(text.find_last_not_of(" \n") + 1);  // CANN's have several lines
  return text.empty() ? "(no message)" : text;
}

void check_status(aclnnStatus status, const char* call, const char* stage, const CallLabel& label) {
  if (status == 0) {
    return;
  }
  const auto& names = aclnn().configuration.status_names;
  const auto name = names.find(status);
  TORCH_CHECK(
      false, label.op, ": ", call, " failed in ", stage, ": ", status, " ",
      name == names.end() ? "(a status without a name here; see CANN's documents)" : name->second,
      ": ", take_message(), "; logits=", label);
}

}  // namespace ascend_sample::npu
