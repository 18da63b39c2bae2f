// The collectives: each is checked at the call, and runs as one task of the caller's stream.
#include "hccl/call.h"

namespace hostcann::hccl {
namespace {

using Constant = std::span<const std::byte>;

void copy(Constant from, Bytes into) {
  if (!from.empty() && from.data() != into.data())
    std::memmove(into.data(), from.data(), from.size());
}

/// Where each rank's part lies: bytes, and offset, of a V form's counts and displacements.
struct Parts {
  std::vector<uint64_t> sizes;
  std::vector<uint64_t> offsets;

  Bytes of(Bytes all, int rank) const {
    const auto i = static_cast<size_t>(rank);
    return all.subspan(offsets[i], sizes[i]);
  }
  uint64_t end() const {
    uint64_t end = 0;
    for (size_t i = 0; i < sizes.size(); ++i) end = std::max(end, offsets[i] + sizes[i]);
    return end;
  }
};

Parts equal_parts(int ranks, uint64_t bytes) {
  Parts parts;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.sizes.push_back(bytes);
    parts.offsets.push_back(bytes * static_cast<uint64_t>(rank));
  }
  return parts;
}

Parts parts_of(Call& call, const void* counts, const void* offsets, const char* name) {
  Parts parts;
  call.check(counts != nullptr && offsets != nullptr,
             std::string(name) + "Counts and displacements must not be null");
  if (call.is_wrong()) return parts;
  for (int rank = 0; rank < call.ranks(); ++rank) {
    parts.sizes.push_back(call.bytes(static_cast<const uint64_t*>(counts)[rank]));
    parts.offsets.push_back(call.bytes(static_cast<const uint64_t*>(offsets)[rank]));
  }
  return parts;
}

/// Every rank's part of the reduction, from what all ranks have of it.
void reduce_scatter(Group& group, const Signature& signature, Bytes send, Bytes receive,
                    const Parts& parts) {
  std::vector<std::vector<std::byte>> others(static_cast<size_t>(group.ranks()),
                                             std::vector<std::byte>(receive.size()));
  group.exchange(signature,
                 links(
                     group, [&](int rank) { return parts.of(send, rank); },
                     [&](int rank) { return Bytes(others[static_cast<size_t>(rank)]); }));
  std::vector<const std::byte*> all;
  for (int rank = 0; rank < group.ranks(); ++rank)
    all.push_back(rank == group.rank() ? parts.of(send, rank).data()
                                       : others[static_cast<size_t>(rank)].data());
  reduce(all, receive.data(), receive.size() / size_of(signature.data_type), signature.data_type,
         static_cast<Reduction>(signature.reduction));
}

void all_gather(Group& group, const Signature& signature, Bytes send, Bytes receive,
                const Parts& parts) {
  group.exchange(
      signature,
      links(group, [&](int) { return send; }, [&](int rank) { return parts.of(receive, rank); }));
  copy(send, parts.of(receive, group.rank()));
}

void all_to_all(Group& group, const Signature& signature, Bytes send, const Parts& sent,
                Bytes receive, const Parts& received) {
  group.exchange(signature, links(
                                group, [&](int rank) { return sent.of(send, rank); },
                                [&](int rank) { return received.of(receive, rank); }));
  copy(sent.of(send, group.rank()), received.of(receive, group.rank()));
}

/// What the root has for each rank, from there to all.
template <typename Part>
void from_root(Group& group, const Signature& signature, Part part, Bytes receive) {
  const auto of_root = [&](int rank) { return rank == signature.root ? receive : Bytes(); };
  group.exchange(signature, group.rank() == signature.root ? links(group, part, nothing)
                                                           : links(group, nothing, of_root));
}

int launch_all_to_all(Call& call, uint64_t count, const void* send, Parts sent, const void* receive,
                      Parts received, void* stream) {
  if (call.is_wrong()) return call.status();
  const Signature signature = call.signature(count);
  const uint64_t out = sent.end();
  const uint64_t in = received.end();
  return call.launch(stream, {{send, out, "sendBuf"}, {receive, in, "recvBuf"}}, {out, in},
                     [signature, sent = std::move(sent), received = std::move(received)](
                         Group& group, const std::vector<Bytes>& buffers) {
                       all_to_all(group, signature, buffers[0], sent, buffers[1], received);
                     });
}

}  // namespace
}  // namespace hostcann::hccl

using namespace hostcann;        // NOLINT: this file ends with CANN's C functions
using namespace hostcann::hccl;  // NOLINT

HCCL_API int HcclAllReduce(void* send, void* receive, uint64_t count, int data_type, int reduction,
                           void* communicator, void* stream) {
  Call call(__func__, communicator, data_type);
  call.check_reduction(reduction);
  if (call.is_wrong()) return call.status();
  const uint64_t bytes = call.bytes(count);
  const Signature signature = call.signature(count, reduction);
  return call.launch(stream, {{send, bytes, "sendBuf"}, {receive, bytes, "recvBuf"}},
                     {bytes, bytes}, [signature](Group& group, const std::vector<Bytes>& buffers) {
                       // Each rank reduces a part of it, and all get all parts.
                       const auto ranks = static_cast<uint64_t>(group.ranks());
                       const uint64_t item = size_of(signature.data_type);
                       Parts parts;
                       uint64_t begin = 0;
                       for (uint64_t rank = 0; rank < ranks; ++rank) {
                         const uint64_t end = signature.count * (rank + 1) / ranks * item;
                         parts.offsets.push_back(begin);
                         parts.sizes.push_back(end - begin);
                         begin = end;
                       }
                       std::vector<std::byte> mine(parts.sizes[static_cast<size_t>(group.rank())]);
                       reduce_scatter(group, signature, buffers[0], mine, parts);
                       all_gather(group, signature, mine, buffers[1], parts);
                     });
}

HCCL_API int HcclReduceScatterV(void* send, const void* counts, const void* offsets, void* receive,
                                uint64_t count, int data_type, int reduction, void* communicator,
                                void* stream) {
  Call call(__func__, communicator, data_type);
  call.check_reduction(reduction);
  Parts parts = parts_of(call, counts, offsets, "send");
  if (call.is_wrong()) return call.status();
  call.check(parts.sizes[static_cast<size_t>(call.rank())] == call.bytes(count),
             "recvCount must be this rank's count of sendCounts, got " + std::to_string(count));
  const Signature signature = call.signature(0, reduction);
  const uint64_t all = parts.end();
  return call.launch(
      stream, {{send, all, "sendBuf"}, {receive, call.bytes(count), "recvBuf"}},
      {all, call.bytes(count)},
      [signature, parts = std::move(parts)](Group& group, const std::vector<Bytes>& buffers) {
        reduce_scatter(group, signature, buffers[0], buffers[1], parts);
      });
}

HCCL_API int HcclReduceScatter(void* send, void* receive, uint64_t count, int data_type,
                               int reduction, void* communicator, void* stream) {
  Call call(__func__, communicator, data_type);
  call.check_reduction(reduction);
  if (call.is_wrong()) return call.status();
  const uint64_t bytes = call.bytes(count);
  const uint64_t all = bytes * static_cast<uint64_t>(call.ranks());
  const Signature signature = call.signature(count, reduction);
  return call.launch(stream, {{send, all, "sendBuf"}, {receive, bytes, "recvBuf"}}, {all, bytes},
                     [signature, bytes](Group& group, const std::vector<Bytes>& buffers) {
                       reduce_scatter(group, signature, buffers[0], buffers[1],
                                      equal_parts(group.ranks(), bytes));
                     });
}

HCCL_API int HcclAllGather(void* send, void* receive, uint64_t count, int data_type,
                           void* communicator, void* stream) {
  Call call(__func__, communicator, data_type);
  if (call.is_wrong()) return call.status();
  const uint64_t bytes = call.bytes(count);
  const uint64_t all = bytes * static_cast<uint64_t>(call.ranks());
  const Signature signature = call.signature(count);
  return call.launch(stream, {{send, bytes, "sendBuf"}, {receive, all, "recvBuf"}}, {bytes, all},
                     [signature, bytes](Group& group, const std::vector<Bytes>& buffers) {
                       all_gather(group, signature, buffers[0], buffers[1],
                                  equal_parts(group.ranks(), bytes));
                     });
}

HCCL_API int HcclAllGatherV(void* send, uint64_t count, void* receive, const void* counts,
                            const void* offsets, int data_type, void* communicator, void* stream) {
  Call call(__func__, communicator, data_type);
  Parts parts = parts_of(call, counts, offsets, "recv");
  if (call.is_wrong()) return call.status();
  call.check(parts.sizes[static_cast<size_t>(call.rank())] == call.bytes(count),
             "sendCount must be this rank's count of recvCounts, got " + std::to_string(count));
  const Signature signature = call.signature(0);
  const uint64_t all = parts.end();
  return call.launch(
      stream, {{send, call.bytes(count), "sendBuf"}, {receive, all, "recvBuf"}},
      {call.bytes(count), all},
      [signature, parts = std::move(parts)](Group& group, const std::vector<Bytes>& buffers) {
        all_gather(group, signature, buffers[0], buffers[1], parts);
      });
}

HCCL_API int HcclBroadcast(void* buffer, uint64_t count, int data_type, uint32_t root,
                           void* communicator, void* stream) {
  Call call(__func__, communicator, data_type);
  call.check_root(root);
  if (call.is_wrong()) return call.status();
  const uint64_t bytes = call.bytes(count);
  const Signature signature = call.signature(count);
  return call.launch(stream, {{buffer, bytes, "buf"}},
                     {call.is_root() ? bytes : 0, call.is_root() ? 0 : bytes},
                     [signature](Group& group, const std::vector<Bytes>& buffers) {
                       const auto all = [&](int) { return buffers[0]; };
                       from_root(group, signature, all, buffers[0]);
                     });
}

HCCL_API int HcclReduce(void* send, void* receive, uint64_t count, int data_type, int reduction,
                        uint32_t root, void* communicator, void* stream) {
  Call call(__func__, communicator, data_type);
  call.check_reduction(reduction);
  call.check_root(root);
  if (call.is_wrong()) return call.status();
  const uint64_t bytes = call.bytes(count);
  const uint64_t written = call.is_root() ? bytes : 0;
  const Signature signature = call.signature(count, reduction);
  return call.launch(stream, {{send, bytes, "sendBuf"}, {receive, written, "recvBuf"}},
                     {bytes, written},
                     [signature](Group& group, const std::vector<Bytes>& buffers) {
                       // Only the root has a part.
                       Parts parts = equal_parts(group.ranks(), 0);
                       parts.offsets.assign(parts.offsets.size(), 0);
                       parts.sizes[static_cast<size_t>(signature.root)] = buffers[0].size();
                       reduce_scatter(group, signature, buffers[0], buffers[1], parts);
                     });
}

HCCL_API int HcclScatter(void* send, void* receive, uint64_t count, int data_type, uint32_t root,
                         void* communicator, void* stream) {
  Call call(__func__, communicator, data_type);
  call.check_root(root);
  if (call.is_wrong()) return call.status();
  const uint64_t bytes = call.bytes(count);
  const uint64_t all = call.is_root() ? bytes * static_cast<uint64_t>(call.ranks()) : 0;
  const Signature signature = call.signature(count);
  return call.launch(stream, {{send, all, "sendBuf"}, {receive, bytes, "recvBuf"}}, {all, bytes},
                     [signature, bytes](Group& group, const std::vector<Bytes>& buffers) {
                       const Parts parts = equal_parts(group.ranks(), bytes);
                       const auto part = [&](int rank) { return parts.of(buffers[0], rank); };
                       from_root(group, signature, part, buffers[1]);
                       if (group.rank() == signature.root) copy(part(group.rank()), buffers[1]);
                     });
}

HCCL_API int HcclAlltoAll(const void* send, uint64_t send_count, int send_type, const void* receive,
                          uint64_t receive_count, int receive_type, void* communicator,
                          void* stream) {
  Call call(__func__, communicator, send_type);
  call.check(receive_type == send_type && receive_count == send_count,
             "recvType and recvCount must be sendType and sendCount");
  if (call.is_wrong()) return call.status();
  const Parts parts = equal_parts(call.ranks(), call.bytes(send_count));
  return launch_all_to_all(call, send_count, send, parts, receive, parts, stream);
}

HCCL_API int HcclAlltoAllV(const void* send, const void* send_counts, const void* send_offsets,
                           int send_type, const void* receive, const void* receive_counts,
                           const void* receive_offsets, int receive_type, void* communicator,
                           void* stream) {
  Call call(__func__, communicator, send_type);
  call.check(receive_type == send_type, "recvType must be sendType");
  Parts sent = parts_of(call, send_counts, send_offsets, "send");
  Parts received = parts_of(call, receive_counts, receive_offsets, "recv");
  return launch_all_to_all(call, 0, send, std::move(sent), receive, std::move(received), stream);
}

/// The matrix has what each rank (a row) sends to each (a column); parts lie one after the other.
HCCL_API int HcclAlltoAllVC(const void* send, const void* matrix, int send_type,
                            const void* receive, int receive_type, void* communicator,
                            void* stream) {
  Call call(__func__, communicator, send_type);
  call.check(receive_type == send_type, "recvType must be sendType");
  call.check(matrix != nullptr, "sendCountMatrix must not be null");
  if (call.is_wrong()) return call.status();
  const auto* counts = static_cast<const uint64_t*>(matrix);
  Parts sent;
  Parts received;
  uint64_t out = 0;
  uint64_t in = 0;
  for (int other = 0; other < call.ranks(); ++other) {
    sent.offsets.push_back(out);
    sent.sizes.push_back(call.bytes(counts[call.rank() * call.ranks() + other]));
    out += sent.sizes.back();
    received.offsets.push_back(in);
    received.sizes.push_back(call.bytes(counts[other * call.ranks() + call.rank()]));
    in += received.sizes.back();
  }
  return launch_all_to_all(call, 0, send, std::move(sent), receive, std::move(received), stream);
}

HCCL_API int HcclBarrier(void* communicator, void* stream) {
  constexpr int kAnyType = 0;
  Call call(__func__, communicator, kAnyType);
  if (call.is_wrong()) return call.status();
  const Signature signature = call.signature(0);
  return call.launch(stream, {}, {}, [signature](Group& group, const std::vector<Bytes>&) {
    group.exchange(signature, links(group, nothing, nothing));
  });
}
