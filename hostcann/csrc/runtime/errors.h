// The errors of CANN's functions, and when none of them can work.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "hostcann/hostcann.h"
#include "runtime/addresses.h"
#include "runtime/codes.h"

/// CANN's functions: the names that libascendcl.so exports for programs written against CANN.
#define CANN_API extern "C" HOSTCANN_API

namespace hostcann::runtime {

/// set_error() with "{function}: " in front of the message.
int fail(const char* function, int code, const std::string& message);

/// What a handle or a thread stands for. Null after an error, whose status the caller returns.
template <typename T>
struct Found : std::shared_ptr<T> {
  int status = kSuccess;
};

/// What `table` has behind a handle, or fail() with the code and the message.
template <typename T>
Found<T> find_handle(const HandleTable<T>& table, void* handle, const char* function, int code,
                     const char* message) {
  std::shared_ptr<T> object = table.find(handle);
  const int status = object ? kSuccess : fail(function, code, message);
  return {std::move(object), status};
}

/// The answer of a name that exists only so that programs link: says which one it was.
int not_emulated(const char* function);

/// Whether the process is a fork of the one that loaded the runtime: the streams' threads do not
/// exist in it (CANN forbids it too), and what was counted is its parent's.
bool is_fork();

/// 0, or the error of a call that cannot work here: settings from the environment are wrong, or the
/// process is a fork.
int check_usable(const char* function);

}  // namespace hostcann::runtime
