// The file in which Python hands batches to the driver, and results come back; little endian.
// batch_file.py writes and describes it.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/calls.h"
#include "placed_row.h"

namespace ascend_sample::cpu::testing {

inline constexpr uint64_t kBatchFileMagic = 0x3153'4843'5441'4253;  // "SBATCHS1"

/// The numbers before a batch's arrays: all int64, in this order.
struct BatchHeader {
  int64_t type;
  int64_t batch_size;
  int64_t vocab_size;
  int64_t logits_elements;
  int64_t logits_offset;  // elements before the first one
  int64_t logits_row_stride;
  int64_t logits_column_stride;
  int64_t k_elements;
  int64_t k_stride;
  int64_t p_elements;
  int64_t p_stride;
  int64_t q_elements;  // 0: no q
  int64_t q_offset;
  int64_t q_row_stride;
  int64_t q_column_stride;
  int64_t eps_bits;  // of a float32
  int64_t is_need_logits;
};

/// A batch and the memory that it points to.
struct StoredBatch {
  BatchHeader header;
  std::vector<std::byte> logits;
  std::vector<int32_t> k;
  std::vector<std::byte> p;
  std::vector<float> q;
  std::vector<int64_t> selected;
  std::vector<float> kept;

  OperatorCall call();
};

class File {
 public:
  File(const char* path, const char* mode) : file_(std::fopen(path, mode)) {
    if (file_ == nullptr) {
      throw std::runtime_error(std::string("cannot open ") + path);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (file_ != nullptr) {
      std::fclose(file_);
    }
  }

  template <typename T>
  void read(T* values, size_t count) {
    if (count != 0 && std::fread(values, sizeof(T), count, file_) != count) {
      throw std::runtime_error("the batch file ends too early");
    }
  }
  template <typename T>
  void write(const T* values, size_t count) {
    if (count != 0 && std::fwrite(values, sizeof(T), count, file_) != count) {
      throw std::runtime_error("the results cannot be written");
    }
  }
  /// After the last write: only then is it known that all of it arrived.
  void close() {
    const int status = std::fclose(file_);
    file_ = nullptr;
    if (status != 0) {
      throw std::runtime_error("the results cannot be written");
    }
  }

 private:
  std::FILE* file_;
};

/// The number of batches, at the start of a file.
inline int64_t read_batch_count(File& file) {
  uint64_t magic = 0;
  int64_t count = 0;
  file.read(&magic, 1);
  file.read(&count, 1);
  if (magic != kBatchFileMagic) {
    throw std::runtime_error("this is no batch file");
  }
  return count;
}

inline StoredBatch read_batch(File& file) {
  StoredBatch stored;
  file.read(&stored.header, 1);
  const BatchHeader& header = stored.header;
  const size_t size = size_of(static_cast<LogitsType>(header.type));
  const auto count = [](int64_t elements) { return static_cast<size_t>(elements); };
  stored.logits.resize(count(header.logits_elements) * size);
  stored.k.resize(count(header.k_elements));
  stored.p.resize(count(header.p_elements) * size);
  stored.q.resize(count(header.q_elements));
  file.read(stored.logits.data(), stored.logits.size());
  file.read(stored.k.data(), stored.k.size());
  file.read(stored.p.data(), stored.p.size());
  file.read(stored.q.data(), stored.q.size());
  stored.selected.resize(count(header.batch_size), kNotSelected);
  if (header.is_need_logits != 0) {
    stored.kept.resize(count(header.batch_size * header.vocab_size));
    std::memset(stored.kept.data(), kNotWritten, stored.kept.size() * sizeof(float));
  }
  return stored;
}

inline OperatorCall StoredBatch::call() {
  const auto type = static_cast<LogitsType>(header.type);
  const auto logits_offset = static_cast<size_t>(header.logits_offset) * size_of(type);
  OperatorCall call{.logits = {.type = type,
                               .vocab_size = header.vocab_size,
                               .data = logits.data() + logits_offset,
                               .row_stride = header.logits_row_stride,
                               .column_stride = header.logits_column_stride},
                    .batch_size = header.batch_size,
                    .rules = kFirstOperator,
                    .k = {k.data(), header.k_stride},
                    .p = {p.data(), header.p_stride},
                    .min_p = std::nullopt,
                    .q = std::nullopt,
                    .eps = std::bit_cast<float>(static_cast<uint32_t>(header.eps_bits)),
                    .are_probabilities = false,
                    .selected = selected.data(),
                    .kept = kept,
                    .sample_result = std::nullopt};
  if (!q.empty()) {
    call.q = {q.data() + header.q_offset, header.q_row_stride, header.q_column_stride};
  }
  return call;
}

}  // namespace ascend_sample::cpu::testing
