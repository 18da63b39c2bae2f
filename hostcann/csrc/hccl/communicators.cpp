// The life of communicators: root infos, groups behind handles, what is asked of them.
#include <pthread.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>

#include "hccl/groups.h"

namespace hostcann::hccl {
namespace {

constexpr size_t kRootInfoBytes = 4108;  // HCCL_ROOT_INFO_BYTES
constexpr size_t kNameBytes = 128;       // COMM_NAME_MAX_LENGTH, and what a program gives for it
constexpr char kRootInfoMark[] = "hostcann:";

struct Groups {
  std::mutex mutex;
  std::map<const void*, std::shared_ptr<Group>> by_handle;
  uintptr_t next = 0x48434350;  // a number that is no address, and is never used twice
};

Groups& groups() { return only<Groups>(); }

int join(const char* function, const char* root_info, uint32_t ranks, uint32_t rank,
         void** communicator) {
  if (root_info == nullptr || communicator == nullptr)
    return refuse(function, kPointer, "rootInfo and comm must not be null");
  if (strnlen(root_info, kRootInfoBytes) == kRootInfoBytes ||
      std::strncmp(root_info, kRootInfoMark, std::strlen(kRootInfoMark)) != 0)
    return refuse(function, kParameter, "rootInfo must be one that HcclGetRootInfo has written");
  if (ranks == 0 || rank >= ranks) {
    return refuse(
        function, kParameter,
        "rank must be below nRanks, got " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  try {
    auto group = std::make_shared<Group>(root_info + std::strlen(kRootInfoMark),
                                         static_cast<int>(ranks), static_cast<int>(rank));
    Groups& all = groups();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.next += 16;
    *communicator = reinterpret_cast<void*>(all.next);  // NOLINT: a number, as said above
    all.by_handle.emplace(*communicator, std::move(group));
    return kSuccess;
  } catch (const GroupError& error) {
    return refuse(function, error.result, error.what());
  }
}

/// A stream's thread that waits for another rank must not keep the process from ending.
const bool registered = [] {
  return std::atexit([] {
           std::lock_guard<std::mutex> lock(groups().mutex);
           for (const auto& entry : groups().by_handle) entry.second->cancel("the process ends");
         }) == 0;
}();

/// A fork has no part in a group: its end must not end its parent's collectives, and the other
/// ranks must not take it for its parent.
const bool fork_is_noticed = [] {
  const auto lock = [] { groups().mutex.lock(); };
  const auto unlock = [] { groups().mutex.unlock(); };
  return pthread_atfork(lock, unlock, [] {
           for (const auto& entry : groups().by_handle) entry.second->close_all();
           groups().mutex.unlock();
         }) == 0;
}();

}  // namespace

std::shared_ptr<Group> find_group(const char* function, const void* communicator) {
  Groups& all = groups();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.by_handle.find(communicator);
  if (found != all.by_handle.end()) return found->second;
  refuse(function, kParameter, "the communicator was destroyed, or never was one");
  return nullptr;
}

}  // namespace hostcann::hccl

using namespace hostcann;        // NOLINT: this file ends with CANN's C functions
using namespace hostcann::hccl;  // NOLINT

HCCL_API int HcclGetRootInfo(char* root_info) {
  if (root_info == nullptr) return refuse(__func__, kPointer, "rootInfo must not be null");
  try {
    const std::string text = kRootInfoMark + new_group_name();
    std::memset(root_info, 0, kRootInfoBytes);
    text.copy(root_info, kRootInfoBytes - 1);
    return kSuccess;
  } catch (const GroupError& error) {
    return refuse(__func__, error.result, error.what());
  }
}

HCCL_API int HcclCommInitRootInfo(uint32_t ranks, const char* root_info, uint32_t rank,
                                  void** communicator) {
  return join(__func__, root_info, ranks, rank, communicator);
}

/// The configuration (buffers, determinism, where the expansion runs) changes nothing here: all is
/// deterministic.
HCCL_API int HcclCommInitRootInfoConfig(uint32_t ranks, const char* root_info, uint32_t rank,
                                        const void* /*config*/, void** communicator) {
  return join(__func__, root_info, ranks, rank, communicator);
}

HCCL_API int HcclCommDestroy(void* communicator) {
  std::shared_ptr<Group> group = find_group(__func__, communicator);
  if (!group) return kParameter;
  {
    std::lock_guard<std::mutex> lock(groups().mutex);
    groups().by_handle.erase(communicator);
  }
  group->cancel("the communicator was destroyed before the collective had run");
  return kSuccess;
}

/// Writes what `tell` says of the group to `answer`, which messages call `name`.
template <typename Answer, typename Tell>
static int ask(const char* function, const void* communicator, Answer* answer, const char* name,
               Tell tell) {
  if (answer == nullptr) return refuse(function, kPointer, std::string(name) + " must not be null");
  const std::shared_ptr<Group> group = find_group(function, communicator);
  if (!group) return kParameter;
  *answer = static_cast<Answer>(tell(*group));
  return kSuccess;
}

HCCL_API int HcclGetCommAsyncError(void* communicator, int* error) {
  return ask(__func__, communicator, error, "asyncError", std::mem_fn(&Group::async_error));
}

HCCL_API int HcclGetRankSize(void* communicator, uint32_t* ranks) {
  return ask(__func__, communicator, ranks, "rankSize", std::mem_fn(&Group::ranks));
}

HCCL_API int HcclGetRankId(void* communicator, uint32_t* rank) {
  return ask(__func__, communicator, rank, "rank", std::mem_fn(&Group::rank));
}

HCCL_API int HcclGetCommName(void* communicator, char* name) {
  if (name == nullptr) return refuse(__func__, kPointer, "commName must not be null");
  const std::shared_ptr<Group> group = find_group(__func__, communicator);
  if (!group) return kParameter;
  name[group->name().copy(name, kNameBytes - 1)] = '\0';
  return kSuccess;
}

/// torch_npu sets options (determinism) when it starts: all is deterministic here.
HCCL_API int HcclSetConfig(int /*option*/, long long /*value*/) { return kSuccess; }

/// A bit set of what a configuration may hold: nothing is looked at.
HCCL_API unsigned HcclGetCommConfigCapability() { return 0; }

HCCL_API const char* HcclGetErrorString(int result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kParameter:
      return "parameter error";
    case kPointer:
      return "empty pointer";
    case kNotSupported:
      return "not supported by hostcann";
    case kSystemCall:
      return "system call error";
    case kTimeout:
      return "timeout";
    case kRuntime:
      return "call runtime api fail";
    case kRemote:
      return "remote rank error";
    default:
      return "unknown error";
  }
}

/// A name that exists so that programs link or find it; every call is refused, and the message
/// names the function. The arguments are not read, so they are not declared.
#define HCCL_NOT_EMULATED(name) \
  HCCL_API int name() { return refuse(#name, kNotSupported, "hostcann does not emulate it"); }

HCCL_NOT_EMULATED(HcclCommActivateCommMemory)
HCCL_NOT_EMULATED(HcclCommDeactivateCommMemory)
HCCL_NOT_EMULATED(HcclCommDeregister)
HCCL_NOT_EMULATED(HcclCommExchangeMem)
HCCL_NOT_EMULATED(HcclCommInitAll)
HCCL_NOT_EMULATED(HcclCommInitClusterInfoConfig)
HCCL_NOT_EMULATED(HcclCommInitRootInfoScalable)
HCCL_NOT_EMULATED(HcclCommRegister)
HCCL_NOT_EMULATED(HcclCommResume)
HCCL_NOT_EMULATED(HcclCommSetMemoryRange)
HCCL_NOT_EMULATED(HcclCommUnsetMemoryRange)
HCCL_NOT_EMULATED(HcclCommWorkingDevNicSet)
HCCL_NOT_EMULATED(HcclCreateSubCommConfig)
HCCL_NOT_EMULATED(HcclGetRootInfoScalable)
