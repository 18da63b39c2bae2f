// How phase 1 reads its arguments, and how it refuses them.
#include "hostcann/opapi/handles.h"

namespace hostcann::opapi {

namespace {

/// Copies a handle's object to *out, or says why that cannot be done.
template <typename Handle, typename Object, typename Result>
int read_argument(const char* op, const char* argument, HandleTable<Handle, Object>& table,
                  const Handle* handle, Result* out) {
  if (handle == nullptr) return reject(kAclnnNullptr, op, argument, "must not be null");
  std::shared_ptr<const Object> object = table.find(handle);
  if (object != nullptr) {
    *out = *object;
    return kSuccess;
  }
  if (table.state(handle) == HandleState::kGone) {
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
  if (int status = read_argument(op, argument, tensor_table(), tensor, out)) return status;
  out->name = operator_name(op) + ": " + argument;
  out->tensor = reinterpret_cast<uint64_t>(tensor);
  return kSuccess;
}

int scalar_of(const char* op, const char* argument, const aclScalar* scalar, Scalar* out) {
  return read_argument(op, argument, scalar_table(), scalar, out);
}

int integers_of(const char* op, const char* argument, const aclIntArray* array,
                std::vector<int64_t>* out) {
  return read_argument(op, argument, int_array_table(), array, out);
}

int floats_of(const char* op, const char* argument, const aclFloatArray* array,
              std::vector<float>* out) {
  return read_argument(op, argument, float_array_table(), array, out);
}

int booleans_of(const char* op, const char* argument, const aclBoolArray* array,
                std::vector<bool>* out) {
  return read_argument(op, argument, bool_array_table(), array, out);
}

int tensors_of(const char* op, const char* argument, const aclTensorList* list,
               std::vector<const aclTensor*>* out) {
  return read_argument(op, argument, tensor_list_table(), list, out);
}

int scalars_of(const char* op, const char* argument, const aclScalarList* list,
               std::vector<Scalar>* out) {
  std::vector<const aclScalar*> members;
  if (int status = read_argument(op, argument, scalar_list_table(), list, &members)) return status;
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
