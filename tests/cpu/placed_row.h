// One row of a call in memory of its own, so that a read or write outside it is seen.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>

#include "cpu/calls.h"

namespace ascend_sample::cpu::testing {

inline size_t size_of(LogitsType type) { return type == LogitsType::kFloat32 ? 4 : 2; }

/// Where a block lies. AddressSanitizer guards both ends of a heap block, but sees no masked or
/// gathering vector instruction; a guard page sees every instruction, on every machine.
enum class Placement : uint8_t { kHeap, kBeforeGuard, kBehindGuard };

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

inline constexpr int64_t kNotSelected = std::numeric_limits<int64_t>::min();
inline constexpr int kNotWritten = 0x7E;  // four of these are an improbable float

/// A copy of one row as a call of its own. No block is a byte larger than what may be touched. The
/// placement is that of logits, q and what is written of a row.
template <typename Call>
class PlacedRow {
 public:
  PlacedRow(const Call& call, int64_t row, Placement placement)
      : vocab_size_(static_cast<size_t>(call.logits.vocab_size)),
        placement_(placement),
        call_(call) {
    call_.batch_size = 1;
    call_.logits.data = copy_of(call.logits.data, row * call.logits.row_stride,
                                span(call.logits.column_stride), size(), placement);
    place(row);
  }
  PlacedRow(const PlacedRow&) = delete;
  PlacedRow& operator=(const PlacedRow&) = delete;

  const Call& call() const { return call_; }

 private:
  void place(int64_t row)
    requires(std::is_same_v<Call, OperatorCall>)
  {
    place_number(call_.k, row, sizeof(int32_t));
    place_number(call_.p, row, size());
    if (call_.min_p.has_value()) {
      place_number(*call_.min_p, row, size());
    }
    if (call_.q.has_value()) {
      call_.q->data = static_cast<const float*>(copy_of(call_.q->data, row * call_.q->row_stride,
                                                        span(call_.q->column_stride), sizeof(float),
                                                        placement_));
    }
    call_.selected = not_selected();
    if (!call_.kept.empty()) {
      call_.kept = {not_written<float>(), vocab_size_};
    }
    if (call_.sample_result.has_value()) {
      call_.sample_result = {not_written<float>(), not_written<int64_t>()};
    }
  }
  /// The numbers are those of the first request.
  void place(int64_t /*row*/)
    requires(std::is_same_v<Call, SamplingCall>)
  {
    place_edits(call_.edits);
    call_.selected = not_selected();
    *call_.status = RowStatus{-1};  // has to be written
  }
  void place_edits(Edits& edits) {
    if (edits.addends.has_value()) {
      const int64_t slot = edits.addends->slots[0];
      const size_t length = edits.addends->lists.of(slot).size();
      place_table(edits.addends->lists.ids, slot, length);
      place_table(edits.addends->addends, slot, length);
    }
    if (edits.penalties.has_value()) {
      const int64_t slot = edits.penalties->slots[0];
      place_table(edits.penalties->lists.ids, slot, edits.penalties->lists.of(slot).size());
      place_table(edits.penalties->occurrences, slot, vocab_size_);
    }
    for (std::optional<Masks>* masks : {&edits.masks, &edits.bitmask}) {
      if (masks->has_value()) {
        place_table((*masks)->words, (*masks)->slots[0], (vocab_size_ + 31) / 32);
      }
    }
  }
  void place(int64_t /*row*/)
    requires(std::is_same_v<Call, FilteringCall>)
  {
    place_edits(call_.edits);
    call_.kept = not_written<float>();
  }
  /// The token that is given is that of the first row.
  void place(int64_t /*row*/)
    requires(std::is_same_v<Call, RankingCall>)
  {
    const auto width = static_cast<size_t>(call_.width());
    call_.numbers = not_written<float>(width);
    call_.token_ids = not_written<int64_t>(width);
    if (call_.given.has_value()) {
      call_.given->ranks = not_selected();
    }
  }

  size_t size() const { return size_of(call_.logits.type); }

  /// The elements from the first to the last of a row.
  size_t span(int64_t column_stride) const {
    return (vocab_size_ - 1) * static_cast<size_t>(column_stride) + 1;
  }

  const void* copy_of(const void* data, int64_t start, size_t count, size_t size,
                      Placement placement) {
    const auto* from = static_cast<const std::byte*>(data) + start * static_cast<int64_t>(size);
    std::byte* const to = blocks_.emplace_back(count * size, placement).data();
    if (count != 0) {  // an empty list is nowhere
      std::memcpy(to, from, count * size);
    }
    return to;
  }
  template <typename Element>
  void place_number(Column<Element>& column, int64_t row, size_t size) {
    column.data = static_cast<const Element*>(
        copy_of(column.data, row * column.stride, 1, size, Placement::kHeap));
    column.stride = 0;
  }
  /// The row of one slot alone, which it is for every slot then.
  template <typename Element>
  void place_table(Table<Element>& table, int64_t slot, size_t count) {
    table = {static_cast<const Element*>(
                 copy_of(table.row(slot), 0, count, sizeof(Element), placement_)),
             0};
  }
  int64_t* not_selected() {
    return static_cast<int64_t*>(
        std::memcpy(blocks_.emplace_back(sizeof(int64_t), Placement::kHeap).data(), &kNotSelected,
                    sizeof(int64_t)));
  }
  template <typename Element>
  Element* not_written() {
    return not_written<Element>(vocab_size_);
  }
  template <typename Element>
  Element* not_written(size_t count) {
    const size_t bytes = count * sizeof(Element);
    return static_cast<Element*>(
        std::memset(blocks_.emplace_back(bytes, placement_).data(), kNotWritten, bytes));
  }

  size_t vocab_size_;
  Placement placement_;
  Call call_;
  std::deque<Block> blocks_;
};

}  // namespace ascend_sample::cpu::testing
