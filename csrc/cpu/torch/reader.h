// Tensors as the core reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "cpu/calls.h"

namespace ascend_sample::cpu {

/// What each of an argument's numbers has to be, and how an error says so.
struct Range {
  int64_t least;
  int64_t end;
  const char* end_name;  // "the batch size of logits"
  const char* remedy;
};

/// Raises a ValueError unless all numbers of an operator's argument are in the range. On the CPU
/// they can be looked at; a kernel on a device would have to wait for them.
void check_values(const char* op, const char* name, std::span<const int64_t> values,
                  const Range& range);

/// Raises unless these are ids of the vocabulary.
inline void check_ids(const char* op, const char* name, std::span<const int64_t> ids,
                      const at::Tensor& logits) {
  check_values(op, name, ids,
               {.least = 0,
                .end = logits.size(1),
                .end_name = "the vocabulary size of logits",
                .remedy = "Give ids of the vocabulary."});
}

/// Reads tensors. What it returns lives as long as this and they.
class Reader {
 public:
  /// A few numbers a row: not worth a stride.
  template <typename Element>
  const Element* list(const at::Tensor& tensor) {
    return held(tensor, tensor.is_contiguous()).template const_data_ptr<Element>();
  }

  /// The same with its length; empty where there is none.
  template <typename Element>
  std::span<const Element> numbers(const std::optional<at::Tensor>& tensor) {
    if (!tensor.has_value()) {
      return {};
    }
    return {list<Element>(*tensor), static_cast<size_t>(tensor->numel())};
  }

  template <typename Element>
  Table<Element> table(const at::Tensor& tensor) {
    const at::Tensor& rows = held(tensor, tensor.stride(1) == 1);
    return {rows.template const_data_ptr<Element>(), rows.stride(0)};
  }

  /// Which rows of logits are meant; empty: all.
  std::span<const int64_t> rows(const char* op, const std::optional<at::Tensor>& rows,
                                const at::Tensor& logits, const char* name = "rows") {
    const std::span<const int64_t> read = numbers<int64_t>(rows);
    check_values(op, name, read,
                 {.least = 0,
                  .end = logits.size(0),
                  .end_name = "the batch size of logits",
                  .remedy = "Pass None for all rows."});
    return read;
  }

  /// Ids of the vocabulary; empty where there are none.
  std::span<const int64_t> ids(const char* op, const std::optional<at::Tensor>& ids,
                               const at::Tensor& logits, const char* name) {
    const std::span<const int64_t> read = numbers<int64_t>(ids);
    check_ids(op, name, read, logits);
    return read;
  }

 private:
  /// The tensor, or a copy that is kept where its numbers do not lie as they have to.
  const at::Tensor& held(const at::Tensor& tensor, bool is_read_in_place) {
    return is_read_in_place ? tensor : copies_.emplace_back(tensor.contiguous());
  }

  std::vector<at::Tensor> copies_;
};

}  // namespace ascend_sample::cpu
