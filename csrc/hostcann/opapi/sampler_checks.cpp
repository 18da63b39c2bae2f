#include "hostcann/opapi/sampler_checks.h"

#include <algorithm>

#include "hostcann/opapi/ordered_row.h"

namespace hostcann::opapi {

namespace {

constexpr int64_t kMaximumVocabSize = 1ll << 20;
constexpr int64_t kMaximumLogits =
    1ll << 32;  // B * V reaches this: 32-bit positions overflow inside the operator

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

}  // namespace

std::string got(const Operand& operand) {
  return ", got " + name_of(operand.data_type) + " " + name_of(operand.sizes);
}

int check_type(const char* op, const char* argument, const Operand& operand,
               std::initializer_list<DataType> types) {
  if (std::find(types.begin(), types.end(), operand.data_type) != types.end()) return kSuccess;
  std::vector<std::string> names;
  for (DataType type : types) names.push_back(name_of(type));
  return reject(kAclnnInvalid, op, argument, "must be " + joined(names, " or ") + got(operand));
}

int check_type_of_logits(const char* op, const char* argument, const Operand& operand,
                         const Operand& logits) {
  if (operand.data_type == logits.data_type) return kSuccess;
  return reject(kAclnnInvalid, op, argument,
                "must have the data type of logits, " + name_of(logits.data_type) + got(operand));
}

int check_soc(const char* op, std::initializer_list<const char*> series) {
  const std::string soc = soc_name();
  std::vector<std::string> names;
  for (const char* name : series) {
    if (soc.rfind(name, 0) == 0) return kSuccess;
    names.push_back(std::string(name) + "*");
  }
  return reject(kAclnnUnsupportedSoc, op, "has no kernel for SoC",
                soc + "; it runs on " + joined(names, " and "));
}

int check_shape(const char* op, const char* argument, const Operand& operand,
                const std::vector<int64_t>& expected) {
  if (operand.sizes == expected) return kSuccess;
  return reject(kAclnnTiling, op, argument,
                "must have shape " + name_of(expected) + " to match logits" + got(operand));
}

int check_logits_shape(const char* op, const Operand& logits) {
  const std::vector<int64_t>& sizes = logits.sizes;
  if (sizes.size() != 2) {
    return reject(kAclnnTiling, op, "logits", "must have shape [batch, vocab_size]" + got(logits));
  }
  if (sizes[1] < 1 || sizes[1] > kMaximumVocabSize) {
    return reject(kAclnnTiling, op, "logits",
                  "must have a vocab_size in [1, 1048576]" + got(logits));
  }
  if (sizes[0] >= (kMaximumLogits + sizes[1] - 1) / sizes[1]) {
    return reject(kAclnnTiling, op, "logits", "must have fewer than 2^32 elements" + got(logits));
  }
  return kSuccess;
}

void run_in_workspace(const char* op, const std::function<void()>& kernel) {
  try {
    kernel();
  } catch (const ScratchChanged& error) {
    report_violation(Violation::kWorkspaceOverrun, std::string(op) + ": " + error.what());
    throw;
  }
}

}  // namespace hostcann::opapi
