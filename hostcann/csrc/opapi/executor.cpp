// The two phases of every operator: make_executor and run_executor.
#include <algorithm>

#include "opapi/handles.h"

namespace hostcann::opapi {

struct LaunchAccess {
  static Launch make(const Plan& plan, std::byte* workspace) {
    Launch launch;
    launch.inputs_ = &plan.inputs;
    launch.outputs_ = &plan.outputs;
    launch.workspace_ = workspace;
    return launch;
  }
};

namespace {

constexpr int64_t kMaximumRank = 8;  // of every aclnn operator
constexpr std::byte kRedZoneByte{0xA5};
constexpr uint64_t kAbsurdWorkspace = 1ull << 60;  // what the fault "workspace" asks for
// Formats whose memory is plain and strided: NCHW, NHWC, ND, NDHWC, NCDHW, NCL. The others are
// blocked layouts.
constexpr int kStridedFormats[] = {0, 1, kFormatND, 27, 30, 47};

/// The rules that hold for the tensors of every operator.
int check_operand(const char* op, const char* argument, const Operand& operand) {
  if (operand.item_size() == 0) {
    return reject(
        kAclnnInvalid, op, argument,
        "must have a data type that hostcann emulates, got " + name_of(operand.data_type));
  }
  if (std::find(std::begin(kStridedFormats), std::end(kStridedFormats), operand.format) ==
      std::end(kStridedFormats)) {
    return reject(
        kAclnnInvalid, op, argument,
        "must have a strided format (ND), got aclFormat(" + std::to_string(operand.format) + ")");
  }
  if (operand.dim() > kMaximumRank) {
    return reject(kAclnnInvalid, op, argument,
                  "must have at most 8 dimensions, got shape " + name_of(operand.sizes));
  }
  if (operand.numel() == 0) return kSuccess;
  if (reinterpret_cast<uintptr_t>(operand.address) % kAddressAlignment != 0) {
    const std::string rule = "must have a storage address that is a multiple of 32, got " +
                             hexadecimal(operand.address) +
                             "; pass the storage's base and put the rest into the offset";
    report_violation(Violation::kMisaligned, operand.name + " " + rule);
    return reject(kAclnnInvalid, op, argument, rule);
  }
  const int64_t storage_bytes = operand.storage_numel() * static_cast<int64_t>(operand.item_size());
  if (operand.first_byte() < 0 || operand.end_byte() > storage_bytes) {
    const std::string rule =
        "must lie inside its storage of shape " + name_of(operand.storage_sizes) + ", got bytes [" +
        std::to_string(operand.first_byte()) + ", " + std::to_string(operand.end_byte()) + ") of " +
        std::to_string(storage_bytes) + ": " + operand.describe();
    report_violation(Violation::kOutOfRangeOperand, operand.name + " " + rule);
    return reject(kAclnnInvalid, op, argument, rule);
  }
  return kSuccess;
}

int describe_all(const char* op, const std::vector<Argument>& arguments,
                 std::vector<Operand>* operands) {
  for (const Argument& argument : arguments) {
    Operand operand;
    if (argument.tensor == nullptr && argument.optional) {
      operand.name = operator_name(op) + ": " + argument.name;
    } else {
      if (int status = describe(op, argument.name, argument.tensor, &operand)) return status;
      if (int status = check_operand(op, argument.name, operand)) return status;
    }
    operands->push_back(std::move(operand));
  }
  return kSuccess;
}

/// What a kernel reads and writes of its operands.
Traffic traffic_of(const Plan& plan, const std::vector<Argument>& inputs,
                   const std::vector<Argument>& outputs) {
  int64_t named = 0;
  auto look = [&named](const std::vector<Argument>& arguments,
                       const std::vector<Operand>& operands) {
    for (size_t i = 0; i < operands.size(); ++i) {
      if (arguments[i].touched == Touched::kAll && operands[i].defined())
        named = std::max(named, operands[i].numel());
    }
  };
  look(inputs, plan.inputs);
  look(outputs, plan.outputs);
  auto bytes = [named](const Argument& argument, const Operand& operand) -> uint64_t {
    if (!operand.defined() || argument.touched == Touched::kNothing) return 0;
    int64_t elements = operand.distinct_numel();
    if (argument.touched == Touched::kWhatIsNamed) elements = std::min(elements, named);
    return static_cast<uint64_t>(elements) * operand.item_size();
  };
  Traffic traffic;
  for (size_t i = 0; i < inputs.size(); ++i) traffic.read += bytes(inputs[i], plan.inputs[i]);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const uint64_t touched = bytes(outputs[i], plan.outputs[i]);
    traffic.written += touched;
    if (outputs[i].is_read_too) traffic.read += touched;
  }
  return traffic;
}

int check_workspace(const Plan& plan, const void* workspace, uint64_t workspace_size) {
  const char* op = plan.op.c_str();
  if (plan.workspace_total == 0) return kSuccess;
  if (workspace == nullptr) {
    return reject(
        kAclnnNullptr, op, "workspace",
        "must not be null: phase 1 asked for " + std::to_string(plan.workspace_total) + " bytes");
  }
  if (workspace_size < plan.workspace_total) {
    const std::string rule = "must have the " + std::to_string(plan.workspace_total) +
                             " bytes that phase 1 asked for, got " + std::to_string(workspace_size);
    report_violation(Violation::kWorkspaceUndersized, plan.op + ": workspace " + rule);
    return reject(kAclnnInvalid, op, "workspaceSize", rule);
  }
  if (reinterpret_cast<uintptr_t>(workspace) % kAddressAlignment != 0) {
    const std::string rule = "must be a multiple of 32, got " + hexadecimal(workspace);
    report_violation(Violation::kMisaligned, plan.op + ": workspace " + rule);
    return reject(kAclnnInvalid, op, "workspace", rule);
  }
  return kSuccess;
}

int check_tensors_alive(const Plan& plan) {
  for (const auto* operands : {&plan.inputs, &plan.outputs}) {
    for (const Operand& operand : *operands) {
      if (!operand.defined() || table<aclTensor>().state(reinterpret_cast<const aclTensor*>(
                                    operand.tensor)) == HandleState::kAlive) {
        continue;
      }
      const std::string message = operand.name + " was destroyed between phase 1 and phase 2";
      report_violation(Violation::kTensorDestroyedEarly, message);
      return set_error(kAclnnInvalid, message);
    }
  }
  return kSuccess;
}

/// Runs on the stream's thread, once for each launch or replay.
void run_kernel(const Plan& plan, void* workspace) {
  const std::string what = plan.op + ": workspace";
  std::byte* scratch =
      plan.workspace_total == 0 ? nullptr : resolve(workspace, plan.workspace_total, what);
  if (scratch != nullptr) {
    std::byte* end = scratch + plan.workspace_total;
    std::fill(end - kRedZoneBytes, end, kRedZoneByte);
  }
  Launch launch = LaunchAccess::make(plan, scratch);
  try {
    plan.kernel(launch);
  } catch (const TaskError&) {
    throw;
  } catch (const std::exception& error) {
    throw TaskError(kDeviceTaskFailed, plan.op + ": " + error.what());
  }
  if (scratch == nullptr) return;
  // Still mapped, whatever became of the block: the runtime holds what a running task has resolved.
  const std::byte* end = scratch + plan.workspace_total;
  if (std::any_of(end - kRedZoneBytes, end, [](std::byte byte) { return byte != kRedZoneByte; })) {
    const std::string message = what + " was written by others while the kernel ran";
    report_violation(Violation::kWorkspaceOverrun, message);
    throw TaskError(kDeviceTaskFailed, message);
  }
}

/// Takes an injected fault of `site`: its status, or 0 when there is none.
int injected_status(const char* site, const std::string& op) {
  const std::optional<InjectedFault> fault = take_injected_fault(site, op);
  if (!fault) return kSuccess;
  return set_error(fault->code == 0 ? kAclnnRuntime : fault->code, op + ": " + fault->message);
}

}  // namespace

int make_executor(const char* op, const std::vector<Argument>& inputs,
                  const std::vector<Argument>& outputs, uint64_t workspace_bytes, Kernel kernel,
                  uint64_t* workspace_size, aclOpExecutor** executor) {
  if (workspace_size == nullptr) {
    return reject(kAclnnNullptr, op, "workspaceSize", "must not be null");
  }
  if (executor == nullptr) return reject(kAclnnNullptr, op, "executor", "must not be null");
  auto plan = std::make_shared<Plan>();
  plan->op = operator_name(op);
  if (int status = describe_all(op, inputs, &plan->inputs)) return status;
  if (int status = describe_all(op, outputs, &plan->outputs)) return status;
  if (int status = injected_status("phase1", plan->op)) return status;
  plan->workspace_total = workspace_bytes == 0 ? 0 : workspace_bytes + kSystemWorkspaceBytes;
  plan->kernel = std::move(kernel);
  plan->traffic = traffic_of(*plan, inputs, outputs);
  plan->caller = find_caller();
  plan->caller.memory += static_cast<int64_t>(plan->workspace_total);
  *workspace_size =
      take_injected_fault("workspace", plan->op) ? kAbsurdWorkspace : plan->workspace_total;
  *executor =
      table<aclOpExecutor>().insert({std::move(plan), std::make_shared<std::atomic<bool>>(false)});
  return kSuccess;
}

int run_executor(const char* op, void* workspace, uint64_t workspace_size, aclOpExecutor* executor,
                 aclrtStream stream) {
  if (executor == nullptr) return reject(kAclnnNullptr, op, "executor", "must not be null");
  auto found = table<aclOpExecutor>().find(executor);
  // take() decides between two threads that bring the same executor.
  if (found != nullptr && !*found->repeatable) found = table<aclOpExecutor>().take(executor);
  if (found == nullptr) {
    if (table<aclOpExecutor>().state(executor) == HandleState::kForeign) {
      return reject(kAclnnInvalid, op, "executor",
                    "must be an executor made by phase 1, got " + hexadecimal(executor));
    }
    const std::string rule =
        hexadecimal(executor) + " was used or destroyed before: an executor serves once";
    report_violation(Violation::kExecutorReused, std::string(op) + ": executor " + rule);
    return reject(kAclnnInvalid, op, "executor", rule);
  }
  const std::shared_ptr<const Plan> plan = found->plan;
  if (plan->op != op) {
    return reject(kAclnnInvalid, op, "executor",
                  "must come from its own phase 1, got one of " + plan->op);
  }
  if (int status = check_tensors_alive(*plan)) return status;
  if (int status = injected_status("phase2", plan->op)) return status;
  if (int status = check_workspace(*plan, workspace, workspace_size)) return status;
  return launch(
      stream, plan->op, [plan, workspace] { run_kernel(*plan, workspace); }, plan->traffic,
      plan->caller);
}

}  // namespace hostcann::opapi

using namespace hostcann::opapi;  // NOLINT: what follows is CANN's C interface, at global scope

extern "C" {

HOSTCANN_API int aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  if (executor == nullptr) {
    return hostcann::set_error(hostcann::kAclnnNullptr,
                               "aclSetAclOpExecutorRepeatable: executor must not be null");
  }
  const auto found = table<aclOpExecutor>().find(executor);
  if (found == nullptr) {
    return hostcann::set_error(hostcann::kAclnnInvalid,
                               "aclSetAclOpExecutorRepeatable: " + hexadecimal(executor) +
                                   " is no executor that is alive");
  }
  *found->repeatable = true;
  return hostcann::kSuccess;
}

HOSTCANN_API int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  if (executor == nullptr || table<aclOpExecutor>().take(executor) != nullptr)
    return hostcann::kSuccess;
  const std::string message =
      "aclDestroyAclOpExecutor: " + hexadecimal(executor) + " is no executor that is alive";
  if (table<aclOpExecutor>().state(executor) == HandleState::kGone) {
    report_violation(hostcann::Violation::kExecutorReused, message);
  }
  return hostcann::set_error(hostcann::kAclnnInvalid, message);
}

}  // extern "C"
