// CANN's C interface as far as the binding calls it, found at run time: nothing is linked, and no
// header of CANN is used.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
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

/// One of the two operators of CANN, as ascend_sample/npu/operators.py describes it.
struct OperatorFacts {
  std::string supported_soc;  // a regular expression that the SoC's name starts with
  std::string devices;        // those SoCs in words
  std::string found_in;       // which CANN has it
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
  aclnnStatus (*aclnnTopKTopPSampleGetWorkspaceSize)(
      const aclTensor* logits, const aclTensor* topK, const aclTensor* topP,
      const aclTensor* qOptional, double eps, bool isNeedLogits, int64_t topKGuess,
      const aclTensor* logitsSelectIdxOut, const aclTensor* logitsTopKpSelectOut,
      uint64_t* workspaceSize, aclOpExecutor** executor);
  Phase2* aclnnTopKTopPSample;
  aclnnStatus (*aclnnTopKTopPSampleV2GetWorkspaceSize)(
      const aclTensor* logits, const aclTensor* topK, const aclTensor* topP,
      const aclTensor* qOptional, const aclTensor* minPsOptional, double eps, bool isNeedLogits,
      int64_t topKGuess, int64_t ksMax, bool inputIsLogits, bool isNeedSampleResult,
      const aclTensor* logitsSelectIdxOut, const aclTensor* logitsTopKpSelectOut,
      const aclTensor* logitsIdxOut, const aclTensor* logitsSortMaskedOut, uint64_t* workspaceSize,
      aclOpExecutor** executor);
  Phase2* aclnnTopKTopPSampleV2;
  /// Null where CANN does not have it: it cannot capture then.
  aclnnStatus (*aclmdlRICaptureGetInfo)(void* stream, int* status, void** model);

  Configuration configuration;
  /// Why an operator (by our name) cannot be called in this process: a library, a symbol or the
  /// SoC; empty when it can.
  std::unordered_map<std::string, std::string> obstacles;
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
