// How phase 1 reads its arguments, and how it refuses them.
#include "opapi/handles.h"

namespace hostcann::opapi {

namespace {

/// Copies a handle's object to *out, or says why that cannot be done.
template <typename Handle>
int read_argument(const char* op, const char* argument, const Handle* handle,
                  ObjectOf<Handle>* out) {
  if (handle == nullptr) return reject(kAclnnNullptr, op, argument, "must not be null");
  const auto object = table<Handle>().find(handle);
  if (object != nullptr) {
    *out = *object;
    return kSuccess;
  }
  if (table<Handle>().state(handle) == HandleState::kGone) {
    const std::string rule = "must be alive, but " + hexadecimal(handle) + " was destroyed";
    report_violation(Violation::kTensorDestroyedEarly,
                     operator_name(op) + ": " + argument + " " + rule);
    return reject(kAclnnInvalid, op, argument, rule);
  }
  return reject(kAclnnInvalid, op, argument,
                "must be a handle made by CANN's aclCreate function for its type, got " +
                    hexadecimal(handle));
}

}  // namespace

std::string operator_name(const char* op) {
  std::string name = op;
  const std::string suffix = "GetWorkspaceSize";
  if (name.size() > suffix.size() &&
      name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0) {
    name.resize(name.size() - suffix.size());
  }
  return name;
}

int reject(int code, const char* op, const char* argument, const std::string& rule) {
  return set_error(code, operator_name(op) + ": " + argument + " " + rule);
}

int describe(const char* op, const char* argument, const aclTensor* tensor, Operand* out) {
  if (int status = read_argument(op, argument, tensor, out)) return status;
  out->name = operator_name(op) + ": " + argument;
  out->tensor = reinterpret_cast<uint64_t>(tensor);
  return kSuccess;
}

int scalar_of(const char* op, const char* argument, const aclScalar* scalar, Scalar* out) {
  return read_argument(op, argument, scalar, out);
}

int integers_of(const char* op, const char* argument, const aclIntArray* array,
                std::vector<int64_t>* out) {
  return read_argument(op, argument, array, out);
}

int booleans_of(const char* op, const char* argument, const aclBoolArray* array,
                std::vector<bool>* out) {
  return read_argument(op, argument, array, out);
}

int tensors_of(const char* op, const char* argument, const aclTensorList* list,
               std::vector<const aclTensor*>* out) {
  return read_argument(op, argument, list, out);
}

int scalars_of(const char* op, const char* argument, const aclScalarList* list,
               std::vector<Scalar>* out) {
  std::vector<const aclScalar*> members;
  if (int status = read_argument(op, argument, list, &members)) return status;
  out->clear();
  for (size_t i = 0; i < members.size(); ++i) {
    const std::string member = std::string(argument) + "[" + std::to_string(i) + "]";
    Scalar scalar;
    if (int status = scalar_of(op, member.c_str(), members[i], &scalar)) return status;
    out->push_back(scalar);
  }
  return kSuccess;
}

}  // namespace hostcann::opapi
