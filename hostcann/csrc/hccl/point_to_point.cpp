// Sends and receives, one by one, in a batch, or grouped: what is grouped is launched as one.
#include "hccl/call.h"

namespace hostcann::hccl {
namespace {

/// What goes between this rank and some others, in the order in which it was asked for.
struct Item {
  bool is_send;
  const void* buffer;
  uint64_t bytes;
  int rank;
};

/// Sends and receives between HcclGroupStart and HcclGroupEnd: they are launched as one at its end.
struct Grouped {
  void* communicator;
  void* stream;
  int data_type;
  std::vector<Item> items;
};
thread_local int group_depth = 0;
thread_local std::vector<Grouped> grouped;

int launch_items(Call& call, const std::vector<Item>& items, void* stream) {
  std::vector<Buffer> buffers;
  Traffic traffic;
  for (const Item& item : items) {
    buffers.push_back({item.buffer, item.bytes, item.is_send ? "sendBuf" : "recvBuf"});
    (item.is_send ? traffic.read : traffic.written) += item.bytes;
  }
  if (call.is_wrong()) return call.status();
  Signature signature = call.signature(0);
  std::strcpy(signature.operation, "point to point");  // HcclSend meets HcclRecv
  return call.launch(stream, std::move(buffers), traffic,
                     [signature, items](Group& group, const std::vector<Bytes>& found) {
                       std::vector<Link> made;
                       for (int rank = 0; rank < group.ranks(); ++rank) {
                         Link link{rank};
                         for (size_t i = 0; i < items.size(); ++i) {
                           if (items[i].rank != rank) continue;
                           if (items[i].is_send)
                             link.out.push_back(found[i]);
                           else
                             link.in.push_back(found[i]);
                         }
                         link.sends = !link.out.empty();
                         link.receives = !link.in.empty();
                         if (rank == group.rank()) {
                           for (size_t i = 0; i < std::min(link.out.size(), link.in.size()); ++i)
                             std::memmove(link.in[i].data(), link.out[i].data(),
                                          std::min(link.in[i].size(), link.out[i].size()));
                         } else if (link.sends || link.receives) {
                           made.push_back(std::move(link));
                         }
                       }
                       group.exchange(signature, made);
                     });
}

int launch_point_to_point(const char* function, void* communicator, int data_type,
                          const std::vector<Item>& items, void* stream) {
  Call call(function, communicator, data_type);
  for (const Item& item : items)
    call.check_rank(item.is_send ? "destRank" : "srcRank", static_cast<uint32_t>(item.rank));
  if (call.is_wrong() || group_depth == 0) {
    return call.is_wrong() ? call.status() : launch_items(call, items, stream);
  }
  for (Grouped& each : grouped) {
    if (each.communicator == communicator && each.stream == stream && each.data_type == data_type) {
      each.items.insert(each.items.end(), items.begin(), items.end());
      return kSuccess;
    }
  }
  grouped.push_back({communicator, stream, data_type, items});
  return kSuccess;
}

Item item_of(bool is_send, const void* buffer, uint64_t count, int data_type, uint32_t rank) {
  return {is_send, buffer, count * size_of(data_type), static_cast<int>(rank)};
}

}  // namespace
}  // namespace hostcann::hccl

using namespace hostcann;        // NOLINT: this file ends with CANN's C functions
using namespace hostcann::hccl;  // NOLINT

HCCL_API int HcclSend(void* send, uint64_t count, int data_type, uint32_t to, void* communicator,
                      void* stream) {
  return launch_point_to_point(__func__, communicator, data_type,
                               {item_of(true, send, count, data_type, to)}, stream);
}

HCCL_API int HcclRecv(void* receive, uint64_t count, int data_type, uint32_t from,
                      void* communicator, void* stream) {
  return launch_point_to_point(__func__, communicator, data_type,
                               {item_of(false, receive, count, data_type, from)}, stream);
}

namespace {

/// HcclSendRecvItem.
struct SendRecvItem {
  int type;  // 0 sends, 1 receives
  void* buffer;
  uint64_t count;
  int data_type;
  uint32_t rank;
};

}  // namespace

HCCL_API int HcclBatchSendRecv(const SendRecvItem* items, uint32_t count, void* communicator,
                               void* stream) {
  if (items == nullptr || count == 0)
    return refuse(__func__, kPointer, "sendRecvInfo must have at least one item");
  std::vector<Item> all;
  for (const SendRecvItem& item : std::span(items, count)) {
    if (item.data_type != items[0].data_type)
      return refuse(__func__, kNotSupported, "hostcann takes items of one dataType alone");
    all.push_back(item_of(item.type == 0, item.buffer, item.count, item.data_type, item.rank));
  }
  return launch_point_to_point(__func__, communicator, items[0].data_type, all, stream);
}

HCCL_API int HcclGroupStart() {
  ++group_depth;
  return kSuccess;
}

HCCL_API int HcclGroupEnd() {
  if (group_depth == 0)
    return refuse(__func__, kParameter, "it must follow a call of HcclGroupStart");
  if (--group_depth > 0) return kSuccess;
  int status = kSuccess;
  for (const Grouped& each : std::exchange(grouped, {})) {
    Call call("HcclBatchSendRecv", each.communicator, each.data_type);
    const int launched =
        call.is_wrong() ? call.status() : launch_items(call, each.items, each.stream);
    status = status == kSuccess ? launched : status;
  }
  return status;
}
