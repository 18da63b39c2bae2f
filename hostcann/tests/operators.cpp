// Operators by the C++ interface that hostcann's operator libraries use.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hostcann/hostcann.h"

extern "C" {
int aclInit(const char*);
int aclrtSetDevice(int);
int aclrtMalloc(void**, size_t, int);
int aclrtFree(void*);
int aclrtCreateStream(void**);
int aclrtSynchronizeStream(void*);
int aclrtLaunchHostFunc(void*, void (*)(void*), void*);
int aclrtResetDeviceForce(int);
const char* aclGetRecentErrMsg();
const char* hostcann_violations();
void hostcann_reset_violations();
void hostcann_set_null_kernels(int);
const char* hostcann_inject(const char*, const char*, int, int, const char*, int);
}

#define EXPECT(condition)                                                            \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::printf("line %d: %s; %s\n", __LINE__, #condition, aclGetRecentErrMsg()); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)
#define EXPECT_TEXT(text, part) EXPECT(std::strstr(text, part) != nullptr)

int main() {
  using hostcann::launch;
  using hostcann::resolve;
  void* block = nullptr;
  void* stream = nullptr;
  EXPECT(aclInit(nullptr) == 0 && aclrtSetDevice(0) == 0);
  EXPECT(aclrtMalloc(&block, 100, 0) == 0 && aclrtCreateStream(&stream) == 0);

  // A kernel that writes behind its block is noticed at the next synchronisation, once.
  EXPECT(launch(stream, "aclnnBehind", [block] { resolve(block, 100, "out")[100] = std::byte{1}; }) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 0 && aclrtSynchronizeStream(stream) == 0);
  EXPECT_TEXT(hostcann_violations(), "1 bytes behind a block of 100 bytes were written");
  EXPECT(std::strchr(hostcann_violations() + 2, '{') == nullptr);
  hostcann_reset_violations();
  EXPECT(launch(stream, "aclnnBefore", [block] { resolve(block, 100, "out")[-3] = std::byte{1}; }) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 0);
  EXPECT_TEXT(hostcann_violations(), "in front of");
  hostcann_reset_violations();

  // A block that is freed under a running kernel stays mapped until the kernel is over.
  EXPECT(launch(stream, "aclnnFrees", [block] {
           std::byte* bytes = resolve(block, 100, "out");
           EXPECT(aclrtFree(block) == 0);
           bytes[99] = std::byte{1};
         }) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 0);
  EXPECT_TEXT(hostcann_violations(), "aclnnFrees: a block was freed while the task was using it");
  hostcann_reset_violations();

  // Kernels that are switched off are accepted and never run; other tasks still do.
  int ran = 0;
  hostcann_set_null_kernels(1);
  EXPECT(launch(stream, "aclnnOff", [&ran] { ran += 1; }) == 0);
  EXPECT(aclrtLaunchHostFunc(stream, [](void* number) { *static_cast<int*>(number) += 10; }, &ran) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 0 && ran == 10);
  hostcann_set_null_kernels(0);

  // An injected fault of a task, and what a kernel throws, surface at the synchronisation.
  hostcann_inject("task", "aclnnHit", 2, 507015, "", 1);
  EXPECT(launch(stream, "aclnnMissed", [&ran] { ran += 1; }) == 0);
  EXPECT(launch(stream, "aclnnHit", [&ran] { ran += 1; }) == 0);
  EXPECT(launch(stream, "aclnnHit", [&ran] { ran += 100; }) == 0);
  EXPECT(launch(stream, "aclnnLater", [&ran] { ran += 100; }) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 507015 && ran == 12);
  EXPECT_TEXT(aclGetRecentErrMsg(), "aclnnHit: injected fault");
  EXPECT(aclrtResetDeviceForce(0) == 0 && aclrtSetDevice(0) == 0 && aclrtCreateStream(&stream) == 0);
  EXPECT(launch(stream, "aclnnThrows", [] { throw std::runtime_error("no such luck"); }) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 507035);
  EXPECT_TEXT(aclGetRecentErrMsg(), "aclnnThrows: no such luck");
  EXPECT_TEXT(hostcann_violations(), "[]");
  std::printf("passed\n");
}
