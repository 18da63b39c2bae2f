// A fuzzed row as a call, in memory of its own, so that a read or write outside it is seen.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <new>
#include <stdexcept>
#include <variant>

#include "cpu/calls.h"
#include "fuzz_case.h"

namespace ascend_sample::cpu::testing {

/// Exactly `bytes` of memory.
class Block {
 public:
  Block(size_t bytes, Placement placement) : placement_(placement) {
    if (placement == Placement::kHeap) {
      memory_ = static_cast<std::byte*>(::operator new(bytes));
      data_ = memory_;
      return;
    }
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t usable = (bytes + page - 1) / page * page;
    mapped_bytes_ = usable + 2 * page;
    void* mapped =
        mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
    if (mapped == MAP_FAILED) {
      throw std::bad_alloc();
    }
    memory_ = static_cast<std::byte*>(mapped);
    if (usable != 0 && mprotect(memory_ + page, usable, PROT_READ | PROT_WRITE) != 0) {
      munmap(memory_, mapped_bytes_);
      throw std::runtime_error("mprotect failed on a block of the test's memory");
    }
    data_ = memory_ + page + (placement == Placement::kBeforeGuard ? usable - bytes : 0);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (placement_ == Placement::kHeap) {
      ::operator delete(memory_);
    } else {
      munmap(memory_, mapped_bytes_);
    }
  }

  std::byte* data() const { return data_; }

 private:
  Placement placement_;
  std::byte* memory_;
  std::byte* data_;
  size_t mapped_bytes_ = 0;
};

using AnyCall = std::variant<OperatorCall, SamplingCall, FilteringCall, RankingCall>;

inline constexpr int64_t kNotSelected = std::numeric_limits<int64_t>::min();

/// A case as the call of one row that it is. No block is a byte larger than what may be touched.
/// The placement is that of logits, q, lists and what is written of a row.
class PlacedCase {
 public:
  explicit PlacedCase(const FuzzCase& fuzz_case);
  PlacedCase(const PlacedCase&) = delete;
  PlacedCase& operator=(const PlacedCase&) = delete;

  const AnyCall& call() const { return call_; }

 private:
  AnyCall call_of(const FuzzCase& fuzz_case);
  OperatorCall operator_call(const FuzzCase& fuzz_case, const Logits& logits);
  SamplingCall sampling_call(const FuzzCase& fuzz_case, const Logits& logits);
  FilteringCall filtering_call(const FuzzCase& fuzz_case, const Logits& logits);
  RankingCall ranking_call(const FuzzCase::Ranking& ranking, const Logits& logits);
  Requests requests(const FuzzCase& fuzz_case);
  Edits edits(const FuzzEdits& given);

  template <typename T>
  T* copied(const T* from, size_t count, Placement placement) {
    const size_t bytes = count * sizeof(T);
    std::byte* const to = blocks_.emplace_back(bytes, placement).data();
    if (bytes != 0) {  // an empty list is nowhere
      std::memcpy(to, from, bytes);
    }
    return reinterpret_cast<T*>(to);
  }
  template <typename T>
  const T* list(const std::vector<T>& values) {
    return copied(values.data(), values.size(), placement_);
  }
  template <typename T>
  T* number(T value) {
    return copied(&value, 1, Placement::kHeap);
  }
  /// The first bytes of the bits: little endian.
  const void* number_of(LogitsType type, uint32_t bits) {
    return copied(reinterpret_cast<const std::byte*>(&bits), size_of(type), Placement::kHeap);
  }
  template <typename T>
  T* not_written(size_t count) {
    std::byte* const data = blocks_.emplace_back(count * sizeof(T), placement_).data();
    return reinterpret_cast<T*>(std::memset(data, 0x7E, count * sizeof(T)));
  }

  Placement placement_;
  std::deque<Block> blocks_;
  KeptList list_;
  AnyCall call_;
};

}  // namespace ascend_sample::cpu::testing
