// libge_runner.so: torch_npu is linked to the graph engine's library without using a name of it.
// torchair does use names of it, and of libraries that hostcann does not have; it cannot be loaded.
#include "hostcann/hostcann.h"

/// Tells, in a list of symbols, that the library is not CANN's.
extern "C" HOSTCANN_API const char* hostcann_ge_runner() { return "hostcann"; }
