// The tensors that describe rows of the sampling layer, as the core reads them.
#pragma once

#include <c10/util/Exception.h>

#include "layer_operators.h"
#include "reader.h"

namespace ascend_sample::cpu {

/// Edits of one kind that rows have: the names of what the core reads, and its rules.
class EditsReader {
 public:
  EditsReader(const char* op, const at::Tensor& logits, Reader& reader)
      : op_(op), logits_(logits), reader_(reader) {}

  const int64_t* slots(const at::Tensor& tensor, const char* name, const at::Tensor& table,
                       const char* table_name) {
    const auto* const slots = reader_.list<int64_t>(tensor);
    slots_ = {slots, static_cast<size_t>(tensor.numel())};
    check_values(op_, name, slots_,
                 {.least = -1,
                  .end = table.size(0),
                  .end_name = table_name,
                  .remedy = "-1 is that of a row without any."});
    return slots;
  }

  /// Of the rows whose slots were read last.
  IdLists lists(const at::Tensor& ids, const char* name, const at::Tensor& lengths,
                const char* lengths_name) {
    const IdLists lists{reader_.table<int64_t>(ids), reader_.list<int64_t>(lengths)};
    for (const int64_t slot : slots_) {
      if (slot >= 0) {
        TORCH_CHECK_VALUE(lists.lengths[slot] >= 0 && lists.lengths[slot] <= ids.size(1), op_, ": ",
                          lengths_name, " must be between 0 and the columns of ", name, " (",
                          ids.size(1), "), got ", lists.lengths[slot],
                          ". Give the length of each list.");
        check_ids(op_, name, lists.of(slot), logits_);
      }
    }
    return lists;
  }

  std::optional<Masks> masks(const std::optional<at::Tensor>& slot, const char* name,
                             const std::optional<at::Tensor>& words, const char* words_name) {
    if (!slot.has_value()) {
      return std::nullopt;
    }
    return Masks{slots(*slot, name, *words, words_name), reader_.table<int32_t>(*words)};
  }

 private:
  const char* op_;
  const at::Tensor& logits_;
  Reader& reader_;
  std::span<const int64_t> slots_;
};

inline Edits edits_of(const char* op, const at::Tensor& logits, const EditsArguments& arguments,
                      Reader& reader) {
  EditsReader edits_reader(op, logits, reader);
  Edits edits;
  if (arguments.addend_slot.has_value()) {
    const at::Tensor& ids = *arguments.addend_ids;
    edits.addends = {
        .slots =
            edits_reader.slots(*arguments.addend_slot, "addend_slot", ids, "the number of slots"),
        .lists = edits_reader.lists(ids, "addend_ids", *arguments.addend_lengths, "addend_lengths"),
        .addends = reader.table<float>(*arguments.addends)};
  }
  if (arguments.penalty_slot.has_value()) {
    const at::Tensor& ids = *arguments.penalty_ids;
    const Table<float> penalties = reader.table<float>(*arguments.penalties);
    edits.penalties = {.slots = edits_reader.slots(*arguments.penalty_slot, "penalty_slot", ids,
                                                   "the number of slots"),
                       .lists = edits_reader.lists(ids, "penalty_ids", *arguments.penalty_lengths,
                                                   "penalty_lengths"),
                       .occurrences = reader.table<int32_t>(*arguments.occurrences),
                       .repetition = penalties.row(0),
                       .presence = penalties.row(1),
                       .frequency = penalties.row(2)};
  }
  edits.masks =
      edits_reader.masks(arguments.mask_slot, "mask_slot", arguments.masks, "the number of masks");
  edits.bitmask = edits_reader.masks(arguments.bitmask_rows, "bitmask_rows", arguments.bitmask,
                                     "the number of bitmasks");
  if (arguments.ranges.has_value()) {
    edits.ranges = Ranges{reader.table<float>(*arguments.ranges)};
  }
  return edits;
}

/// What rows are sampled with: `own` are an operator's arguments, or those of them that have it.
template <typename Arguments, typename Own>
Requests requests_of(const Arguments& arguments, const Own& own, Reader& reader) {
  return {.temperature = reader.list<float>(own.parameters.temperature),
          .k = reader.list<int32_t>(own.parameters.k),
          .p = reader.list<float>(own.parameters.p),
          .min_p = reader.list<float>(own.parameters.min_p),
          .keeps_ties = own.keep_ties,
          .edits = edits_of(Arguments::kName, arguments.logits, own.edits, reader)};
}

inline NoiseKeys keys_of(const KeysArguments& keys, Reader& reader) {
  return {.seed = reader.list<int64_t>(keys.seed),
          .position = reader.list<int64_t>(keys.position),
          .purpose = static_cast<uint32_t>(keys.purpose)};
}

/// What tokens are drawn with.
template <typename Arguments>
SamplingCall sampling_call_of(const Arguments& arguments, Reader& reader,
                              const at::Tensor& token_ids, const at::Tensor& status) {
  return {.logits = logits_of(arguments.logits),
          .batch_size = token_ids.size(0),
          .rows = {},
          .requests = requests_of(arguments, arguments.requests, reader),
          .keys = keys_of(arguments.requests.keys, reader),
          .selected = token_ids.mutable_data_ptr<int64_t>(),
          .status = reinterpret_cast<RowStatus*>(status.mutable_data_ptr<int8_t>())};
}

}  // namespace ascend_sample::cpu
