// Lets torch_npu be imported beside the CUDA build of torch, where an index has no CPU build: both
// register settings of the same names for their allocators, and since torch 2.10 the second to do
// so ends the process. Loaded when Python starts, this loads CUDA's part of torch first and takes
// its names back. Nothing else of torch changes, and no test uses these settings.
#include <c10/core/AllocatorConfig.h>
#include <dlfcn.h>

#include <cstdio>

__attribute__((constructor)) static void forget_the_names_of_cuda() {
  auto& names = c10::CachingAllocator::AcceleratorAllocatorConfig::getMutableKeys();
  const auto before = names;
  if (dlopen("libc10_cuda.so", RTLD_NOW) == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  names = before;
}
