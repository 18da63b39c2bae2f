// One row of a batch in memory of its own, so that a read or write outside it is seen.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>

#include "cpu/sample_rows.h"

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

/// A copy of one row as a batch of its own. No block is a byte larger than what may be touched.
/// The placement is that of logits, q and what is written of a row.
class PlacedRow {
 public:
  PlacedRow(const Batch& batch, int64_t row, Placement placement)
      : vocab_size_(static_cast<size_t>(batch.vocab_size)),
        logits_(span(batch.logits_column_stride) * size_of(batch.type), placement),
        k_(sizeof(int32_t), Placement::kHeap),
        p_(size_of(batch.type), Placement::kHeap),
        min_p_(batch.min_p == nullptr ? 0 : size_of(batch.type), Placement::kHeap),
        q_(batch.q == nullptr ? 0 : span(batch.q_column_stride) * sizeof(float), placement),
        selected_(sizeof(int64_t), Placement::kHeap),
        kept_(batch.kept == nullptr ? 0 : vocab_size_ * sizeof(float), placement),
        dense_weights_(batch.dense_weights == nullptr ? 0 : vocab_size_ * sizeof(float), placement),
        dense_ids_(batch.dense_ids == nullptr ? 0 : vocab_size_ * sizeof(int64_t), placement),
        batch_(batch) {
    const size_t size = size_of(batch.type);
    const auto* logits = static_cast<const std::byte*>(batch.logits);
    const auto* p = static_cast<const std::byte*>(batch.p);
    const auto bytes = [size](int64_t elements) { return elements * static_cast<int64_t>(size); };
    std::memcpy(logits_.data(), logits + bytes(row * batch.logits_row_stride),
                span(batch.logits_column_stride) * size);
    std::memcpy(k_.data(), batch.k + row * batch.k_stride, sizeof(int32_t));
    if (p != nullptr) {
      std::memcpy(p_.data(), p + bytes(row * batch.p_stride), size);
    }
    std::memcpy(selected_.data(), &kNotSelected, sizeof(kNotSelected));
    batch_.batch_size = 1;
    batch_.logits = logits_.data();
    batch_.k = reinterpret_cast<const int32_t*>(k_.data());
    batch_.p = p_.data();
    batch_.selected = reinterpret_cast<int64_t*>(selected_.data());
    if (batch.q != nullptr) {
      std::memcpy(q_.data(), batch.q + row * batch.q_row_stride,
                  span(batch.q_column_stride) * sizeof(float));
      batch_.q = reinterpret_cast<const float*>(q_.data());
    }
    if (batch.kept != nullptr) {
      std::memset(kept_.data(), kNotWritten, vocab_size_ * sizeof(float));
      batch_.kept = reinterpret_cast<float*>(kept_.data());
    }
    if (batch.min_p != nullptr) {
      const auto* min_p = static_cast<const std::byte*>(batch.min_p);
      std::memcpy(min_p_.data(), min_p + bytes(row * batch.min_p_stride), size);
      batch_.min_p = min_p_.data();
    }
    if (batch.dense_weights != nullptr) {
      std::memset(dense_weights_.data(), kNotWritten, vocab_size_ * sizeof(float));
      batch_.dense_weights = reinterpret_cast<float*>(dense_weights_.data());
    }
    if (batch.dense_ids != nullptr) {
      std::memset(dense_ids_.data(), kNotWritten, vocab_size_ * sizeof(int64_t));
      batch_.dense_ids = reinterpret_cast<int64_t*>(dense_ids_.data());
    }
  }

  const Batch& batch() const { return batch_; }

 private:
  /// The elements from the first to the last of a row.
  size_t span(int64_t column_stride) const {
    return (vocab_size_ - 1) * static_cast<size_t>(column_stride) + 1;
  }

  size_t vocab_size_;
  Block logits_, k_, p_, min_p_, q_, selected_, kept_, dense_weights_, dense_ids_;
  Batch batch_;
};

}  // namespace ascend_sample::cpu::testing
