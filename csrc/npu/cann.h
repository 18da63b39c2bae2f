// CANN's C interface as far as the binding calls it, found at run time: nothing is linked, and no
// header of CANN is used.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <unordered_map>
#include <vector>

extern "C" {
struct aclTensor;
struct aclScalar;
struct aclOpExecutor;
}

namespace ascend_sample::npu {

using aclnnStatus = int32_t;

/// One operator of CANN that is one of ours, as ascend_sample/npu/operators.py describes it.
struct OperatorFacts {
  std::string name;
  std::string supported_soc;        // a regular expression that the SoC's name starts with
  std::string devices;              // those SoCs in words
  std::vector<std::string> dtypes;  // that its logits may have, as torch names them
  std::string found_in;             // which CANN has it
  bool takes_any_k;                 // k <= 0 skips top-k; otherwise it is undefined on a device
  bool checks_unwanted;             // the shapes of results that are not asked for
  std::optional<int64_t> most_rows;
  std::optional<std::string> companion;  // a function without which its kernel is left alone
};

/// What ascend_sample/npu knows about CANN and tells the binding once, so that it stands in one
/// place.
struct Configuration {
  std::vector<std::string> operator_libraries;  // in the order in which torch_npu asks them
  std::string runtime_library;
  std::unordered_map<std::string, OperatorFacts> operators;  // by the name of our operator
  std::vector<int64_t> plain_formats;  // memory formats whose memory is as the strides say
  std::unordered_map<int64_t, std::string> status_names;
};

/// Replaces the configuration, and forgets the functions that were found by an earlier one.
void configure(Configuration configuration);

using Phase2 = aclnnStatus(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                           void* stream);

/// An operator of CANN in this process.
struct AclnnOperator {
  std::string phase1_name;
  std::string phase2_name;
  void* phase1 = nullptr;  // its arguments are those of our operator
  Phase2* phase2 = nullptr;
  std::vector<c10::ScalarType> dtypes;
  std::string dtypes_in_words;
  bool takes_any_k;
  bool checks_unwanted;
  std::optional<int64_t> most_rows;
  /// Why it cannot be called: a library, a symbol or the SoC; empty when it can.
  std::string obstacle;

  /// The same for logits of this dtype.
  std::string obstacle_for(c10::ScalarType dtype) const;
};

struct Aclnn {
  const char* (*aclGetRecentErrMsg)();
  const char* (*aclrtGetSocName)();
  aclTensor* (*aclCreateTensor)(const int64_t* view_dims, uint64_t view_rank, int data_type,
                                const int64_t* strides, int64_t offset, int format,
                                const int64_t* storage_dims, uint64_t storage_rank, void* storage);
  aclnnStatus (*aclDestroyTensor)(const aclTensor* tensor);
  aclScalar* (*aclCreateScalar)(void* value, int data_type);
  aclnnStatus (*aclDestroyScalar)(const aclScalar* scalar);
  aclnnStatus (*aclDestroyAclOpExecutor)(aclOpExecutor* executor);
  aclnnStatus (*aclnnThresholdGetWorkspaceSize)(const aclTensor* self, const aclScalar* threshold,
                                                const aclScalar* value, aclTensor* out,
                                                uint64_t* workspaceSize, aclOpExecutor** executor);
  Phase2* aclnnThreshold;
  /// Null where CANN does not have it: it cannot capture then.
  aclnnStatus (*aclmdlRICaptureGetInfo)(void* stream, int* status, void** model);

  Configuration configuration;
  std::unordered_map<std::string, AclnnOperator> operators;  // by the name of ours
};

/// The functions of CANN, looked up at the first call.
const Aclnn& aclnn();

/// CANN's message for the calling thread's last failure; reading clears it.
std::string take_message();

/// What errors tell about a call, put into words only when there is one: our operator, and the
/// logits.
struct CallLabel {
  const char* op;
  int64_t batch_size;
  int64_t vocab_size;
  c10::ScalarType dtype;
};
/// "[4, 32000] bf16".
std::ostream& operator<<(std::ostream& stream, const CallLabel& label);

/// Throws RuntimeError "{op}: {call} failed in {stage}: {code} {name}: {CANN's message};
/// logits=[batch_size, vocab_size] dtype" unless `status` is 0.
void check_status(aclnnStatus status, const char* call, const char* stage, const CallLabel& label);

}  // namespace ascend_sample::npu
