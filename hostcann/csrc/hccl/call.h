// One call of libhccl.so, from its checks to its task: what collectives and point to point share.
#pragma once

#include <cstring>
#include <functional>
#include <utility>

#include "hccl/groups.h"

namespace hostcann::hccl {

inline constexpr int kNone = -1;  // of a signature: the collective has no such argument

using Bytes = std::span<std::byte>;

/// A buffer of the caller's: device memory, which is looked up when the task runs.
struct Buffer {
  const void* address;
  uint64_t bytes;
  const char* name;
};

/// One call, from its checks to its task.
class Call {
 public:
  Call(const char* function, void* communicator, int data_type)
      : function_(function), group_(find_group(function, communicator)), data_type_(data_type) {
    if (!group_) {
      status_ = kParameter;
    } else if (size_of(data_type) == 0) {
      status_ = refuse(function, kParameter,
                       "hostcann does not emulate " + name_of_type(data_type) + " here");
    }
  }

  bool is_wrong() const { return status_ != kSuccess; }
  int status() const { return status_; }
  uint64_t bytes(uint64_t count) const { return count * size_of(data_type_); }
  Group& group() const { return *group_; }
  int ranks() const { return group_->ranks(); }
  int rank() const { return group_->rank(); }

  void check(bool condition, const std::string& message) {
    if (!is_wrong() && !condition) status_ = refuse(function_, kParameter, message);
  }

  void check_rank(const char* argument, uint32_t rank) {
    check(is_wrong() || rank < static_cast<uint32_t>(ranks()),
          std::string(argument) + " must be a rank of the group, got " + std::to_string(rank));
  }

  void check_reduction(int reduction) {
    check(reduction >= 0 && reduction < kReductions,
          "op must be an HcclReduceOp, got " + std::to_string(reduction));
  }

  void check_root(uint32_t root) {
    check_rank("root", root);
    root_ = static_cast<int>(root);
  }
  bool is_root() const { return root_ == rank(); }

  Signature signature(uint64_t count, int reduction = kNone) const {
    Signature made{};
    std::strncpy(made.operation, function_, sizeof made.operation - 1);
    made.data_type = data_type_;
    made.reduction = reduction;
    made.root = root_;
    made.count = count;
    return made;
  }

  /// `work` gets the group and the buffers' bytes, in the order given.
  int launch(void* stream, std::vector<Buffer> buffers, const Traffic& traffic,
             std::function<void(Group&, const std::vector<Bytes>&)> work) {
    for (const Buffer& buffer : buffers)
      check(buffer.bytes == 0 || buffer.address != nullptr,
            std::string(buffer.name) + " must not be null");
    if (is_wrong()) return status_;
    auto task = [function = function_, group = group_, buffers = std::move(buffers),
                 work = std::move(work)] {
      std::vector<Bytes> found;
      for (const Buffer& buffer : buffers) {
        std::byte* data = nullptr;
        if (buffer.bytes > 0)
          data = resolve(buffer.address, buffer.bytes, std::string(function) + "'s " + buffer.name);
        found.emplace_back(data, buffer.bytes);
      }
      work(*group, found);
    };
    const int launched = hostcann::launch(stream, function_, std::move(task), traffic,
                                          find_caller(), /*is_collective=*/true);
    return launched == kSuccess ? kSuccess : kRuntime;
  }

 private:
  const char* function_;
  std::shared_ptr<Group> group_;
  int data_type_;
  int root_ = kNone;
  int status_ = kSuccess;
};

/// Links to all other ranks; what travels by `out` and `in` of a rank.
template <typename Out, typename In>
std::vector<Link> links(const Group& group, Out out, In in) {
  std::vector<Link> made;
  for (int rank = 0; rank < group.ranks(); ++rank) {
    if (rank == group.rank()) continue;
    made.push_back({rank, {out(rank)}, {in(rank)}});
  }
  return made;
}

inline Bytes nothing(int) { return {}; }

}  // namespace hostcann::hccl
