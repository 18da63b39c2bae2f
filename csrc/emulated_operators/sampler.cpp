#include "sampler.h"

#include <algorithm>
#include <cmath>

namespace hostcann::opapi {

namespace {

constexpr int64_t kMaximumVocabSize = 1ll << 20;
/// 32-bit positions overflow inside the operators where B * V is more: the last part of their
/// workspace begins behind 5 numbers for each logit.
constexpr int64_t kMaximumLogits = ((1ll << 32) - 1) / 5;

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

int check_type(const char* op, const SamplerArgument& argument, const Operand& operand,
               const Operand& logits) {
  if (argument.types.empty()) {
    if (operand.data_type == logits.data_type) return kSuccess;
    return reject(kAclnnInvalid, op, argument.name,
                  "must have the data type of logits, " + name_of(logits.data_type) + got(operand));
  }
  const auto& types = argument.types;
  if (std::find(types.begin(), types.end(), operand.data_type) != types.end()) return kSuccess;
  std::vector<std::string> names;
  for (DataType type : types) names.push_back(name_of(type));
  return reject(kAclnnInvalid, op, argument.name,
                "must be " + joined(names, " or ") + got(operand));
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

int check_shape(int refusal, const char* op, const char* argument, const Operand& operand,
                const std::vector<int64_t>& expected) {
  if (operand.sizes == expected) return kSuccess;
  return reject(refusal, op, argument,
                "must have shape " + name_of(expected) + " to match logits" + got(operand));
}

int check_logits_shape(int refusal, const char* op, const Operand& logits, int64_t most_rows) {
  const std::vector<int64_t>& sizes = logits.sizes;
  if (sizes.size() != 2) {
    return reject(refusal, op, "logits", "must have shape [batch, vocab_size]" + got(logits));
  }
  if (sizes[1] < 1 || sizes[1] > kMaximumVocabSize) {
    return reject(kAclnnTiling, op, "logits",
                  "must have a vocab_size in [1, 1048576]" + got(logits));
  }
  if (sizes[0] > kMaximumLogits / sizes[1]) {
    const std::string rule = "must have at most " + std::to_string(kMaximumLogits) + " elements";
    return reject(kAclnnTiling, op, "logits", rule + got(logits));
  }
  if (sizes[0] > most_rows) {
    return reject(kAclnnTiling, op, "logits",
                  "must have at most " + std::to_string(most_rows) + " rows" + got(logits));
  }
  return kSuccess;
}

}  // namespace

std::string got(const Operand& operand) {
  return ", got " + name_of(operand.data_type) + " " + name_of(operand.sizes);
}

int check_sampler(const char* op, const SamplerArguments& arguments,
                  std::initializer_list<const char*> series, int64_t most_rows, int of_shapes) {
  std::vector<std::pair<const SamplerArgument*, Operand>> described;
  for (const auto* side : {&arguments.inputs, &arguments.outputs}) {
    for (const SamplerArgument& argument : *side) {
      if (argument.optional && argument.tensor == nullptr) continue;
      Operand& operand = described.emplace_back(&argument, Operand()).second;
      if (int status = describe(op, argument.name, argument.tensor, &operand)) return status;
    }
  }
  const Operand& logits = described.front().second;
  for (const auto& [argument, operand] : described) {
    if (int status = check_type(op, *argument, operand, logits)) return status;
  }
  if (int status = check_soc(op, series)) return status;
  if (int status = check_logits_shape(of_shapes, op, logits, most_rows)) return status;
  const std::vector<int64_t> batch = {logits.sizes[0]};
  for (const auto& [argument, operand] : described) {
    if (argument->extent == Extent::kAny) continue;
    const auto& expected = argument->extent == Extent::kLogits ? logits.sizes : batch;
    if (int status = check_shape(of_shapes, op, argument->name, operand, expected)) return status;
  }
  return kSuccess;
}

double RowArguments::score(float weight, int64_t place) const {
  const double divisor = std::fabs(static_cast<double>(q[place])) + eps;
  return weight == 0.0f && divisor == 0.0 ? 0.0 : static_cast<double>(weight) / divisor;
}

SamplerRows::SamplerRows(Launch& launch, double eps, bool need_logits, int64_t top_k_guess)
    : launch_(launch),
      eps_(eps),
      top_k_guess_(top_k_guess),
      first_logit_(launch.input(0).resolve()),
      top_k_(reinterpret_cast<const int32_t*>(launch.input(1).resolve())),
      top_p_(entries_of(launch.input(2))),
      q_(launch.input(3), launch.input(3).defined()),
      selected_logits_(launch.output(1), need_logits) {}

RowArguments SamplerRows::operator[](int64_t row) const {
  const Operand& logits = launch_.input(0);
  return {
      .logits = row_of(logits, first_logit_, row),
      .vocab_size = logits.sizes[1],
      .top_k = top_k_[row * launch_.input(1).strides[0]],
      .top_p = top_p_[row],
      .q = q_.row(row),
      .eps = eps_,
      .top_k_guess = top_k_guess_,
      .selected_logits = selected_logits_.row(row),
  };
}

std::byte* SamplerRows::scratch(int64_t row) const {
  return launch_.workspace() + row * launch_.input(0).sizes[1] * kScratchBytesPerLogit;
}

void SamplerRows::write_id(int64_t row, int64_t id) const {
  const Operand& ids = launch_.output(0);
  reinterpret_cast<int64_t*>(ids.resolve())[row * ids.strides[0]] = id;
}

int make_sampler(const char* op, const SamplerArguments& arguments, Kernel sample,
                 uint64_t* workspace_size, aclOpExecutor** executor) {
  Operand logits;
  if (int status = describe(op, "logits", arguments.inputs.front().tensor, &logits)) return status;
  const auto kernel = [op = operator_name(op), sample = std::move(sample)](Launch& launch) {
    if (launch.input(0).sizes[0] == 0) return;
    try {
      sample(launch);
    } catch (const ScratchChanged& error) {
      report_violation(Violation::kWorkspaceOverrun, op + ": " + error.what());
      throw;
    }
  };
  return make_executor(op, {arguments.inputs.begin(), arguments.inputs.end()},
                       {arguments.outputs.begin(), arguments.outputs.end()},
                       static_cast<uint64_t>(logits.numel()) * kScratchBytesPerLogit, kernel,
                       workspace_size, executor);
}

}  // namespace hostcann::opapi
