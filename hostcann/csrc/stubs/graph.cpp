// libgraph.so: torch_npu is linked to it without using a name of it; see ge_runner.cpp.
#include "hostcann/hostcann.h"

/// Tells, in a list of symbols, that the library is not CANN's.
extern "C" HOSTCANN_API const char* hostcann_graph() { return "hostcann"; }
