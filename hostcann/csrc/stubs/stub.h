// What the libraries of this folder are made of.
#pragma once

#include <string>

#include "hostcann/hostcann.h"

namespace hostcann::stubs {

inline int refuse(const char* name, int code) {
  return set_error(
      code,
      std::string(name) + ": hostcann does not emulate this function; see hostcann/csrc/README.md");
}

}  // namespace hostcann::stubs

/// A name that exists so that programs link or find it. Every call is refused with `code`, and the
/// message of aclGetRecentErrMsg names the function. The arguments are not read, so they are not
/// declared.
#define HOSTCANN_STUB(name, code) \
  extern "C" HOSTCANN_API int name() { return hostcann::stubs::refuse(#name, code); }
