#include "fuzz_edits.h"

#include <algorithm>

#include "cpu/calls.h"

namespace ascend_sample::cpu::testing {
namespace {

/// Some ids, perhaps none, several of them twice or more often.
std::vector<int64_t> listed(Dice& dice, int64_t size) {
  std::vector<int64_t> ids;
  const int64_t most = dice.pick<int64_t>({1, 4, 20, 300, 2 * size + 1});
  for (int64_t count = dice.below(std::min<int64_t>(most, 2000)); count > 0; --count) {
    ids.push_back(dice.one_in(4) ? dice.pick<int64_t>({0, size - 1}) : dice.below(size));
  }
  return ids;
}

/// What a grammar allows: stretches, a share, little, everything or nothing.
std::vector<int32_t> words(Dice& dice, int64_t size) {
  std::vector<int32_t> result(static_cast<size_t>((size + 31) / 32));
  const int64_t family = dice.below(6);
  const int64_t rarity = dice.pick<int64_t>({2, 10, 100});
  for (int32_t& word : result) {
    switch (family) {
      case 0:
      case 1:  // whole words
        word = dice.one_in(rarity) != (family == 0) ? -1 : 0;
        break;
      case 2:
        word = static_cast<int32_t>(dice.bits());
        break;
      case 3:
        word = static_cast<int32_t>(dice.bits() & dice.bits() & dice.bits() & dice.bits() &
                                    dice.bits());
        break;
      case 4:  // everything, or all but a few
        word = static_cast<int32_t>(~(uint32_t{dice.one_in(rarity)} << dice.below(32)));
        break;
      case 5:  // a few, or perhaps nothing but bits beyond the vocabulary
        word = static_cast<int32_t>(uint32_t{dice.one_in(rarity)} << dice.below(32));
        break;
    }
  }
  result.back() = dice.one_in(2) ? static_cast<int32_t>(dice.bits()) : result.back();
  return result;
}

/// Numbers of range filters, of which two thirds are off.
std::vector<float> numbers_of_ranges(Dice& dice) {
  std::vector<float> numbers(kRangeFilters);
  for (float& number : numbers) {
    number = dice.one_in(3) ? dice.pick({0.999F, 0.9F, 0.5F, 0.2F, 0.1F, 0.01F, 3e-4F}) : 0.0F;
  }
  numbers[kTypicalP] = numbers[kTypicalP] == 0.0F ? 1.0F : numbers[kTypicalP];
  numbers[kTopNSigma] *= dice.pick({1.0F, 3.0F, 10.0F});
  return numbers;
}

}  // namespace

FuzzEdits make_edits(Dice& dice, int64_t size) {
  FuzzEdits edits;
  const int64_t kinds = 1 + dice.below(31);
  if ((kinds & 1) != 0) {
    edits.addends.emplace();
    edits.addends->ids = listed(dice, size);
    std::sort(edits.addends->ids.begin(), edits.addends->ids.end());
    edits.addends->ids.erase(std::unique(edits.addends->ids.begin(), edits.addends->ids.end()),
                             edits.addends->ids.end());
    dice.shuffle(edits.addends->ids);
    for (size_t i = 0; i < edits.addends->ids.size(); ++i) {
      edits.addends->addends.push_back(dice.pick(
          {-kInfinity, 0.0F, -0.0F, 100.0F, -100.0F, 1e30F, dice.normal(), dice.normal()}));
    }
  }
  if ((kinds & 2) != 0) {
    edits.penalties.emplace(
        FuzzEdits::Penalties{.ids = listed(dice, size),
                             .occurrences = {},
                             .repetition = dice.pick({1.0F, 1.05F, 1.3F, 0.5F, 1e-3F, 1e30F}),
                             .presence = dice.pick({0.0F, 0.5F, -0.5F, 2.0F, -2.0F, 0.1F}),
                             .frequency = dice.pick({0.0F, 0.3F, -0.3F, 2.0F, -2.0F, 0.1F})});
    for (int64_t id = 0; id < size; ++id) {
      edits.penalties->occurrences.push_back(static_cast<int32_t>(
          dice.one_in(3) ? dice.below(2) : dice.below(dice.one_in(20) ? 100'000'000 : 9)));
    }
  }
  if ((kinds & 4) != 0) {
    edits.mask = words(dice, size);
  }
  if ((kinds & 8) != 0) {
    edits.bitmask = words(dice, size);
  }
  if ((kinds & 16) != 0) {
    edits.ranges = numbers_of_ranges(dice);
  }
  return edits;
}

void FuzzEdits::cut(size_t vocab_size) {
  const auto is_cut = [vocab_size](int64_t id) { return static_cast<size_t>(id) >= vocab_size; };
  if (addends.has_value()) {
    Addends left;
    for (size_t i = 0; i < addends->ids.size(); ++i) {
      if (!is_cut(addends->ids[i])) {
        left.ids.push_back(addends->ids[i]);
        left.addends.push_back(addends->addends[i]);
      }
    }
    addends = left;
  }
  if (penalties.has_value()) {
    std::erase_if(penalties->ids, is_cut);
    penalties->occurrences.resize(vocab_size);
  }
  for (auto* const words : {&mask, &bitmask}) {
    if (words->has_value()) {
      (*words)->resize((vocab_size + 31) / 32);
    }
  }
}

std::string FuzzEdits::describe() const {
  constexpr size_t kShown = 12;
  std::string text;
  if (addends.has_value()) {
    append(text, "  %zu addends:", addends->ids.size());
    for (size_t i = 0; i < std::min(kShown, addends->ids.size()); ++i) {
      append(text, " %lld: %a", static_cast<long long>(addends->ids[i]),
             static_cast<double>(addends->addends[i]));
    }
    text += "\n";
  }
  if (penalties.has_value()) {
    append(text, "  penalties %a, %a, %a of %zu ids:", static_cast<double>(penalties->repetition),
           static_cast<double>(penalties->presence), static_cast<double>(penalties->frequency),
           penalties->ids.size());
    for (size_t i = 0; i < std::min(kShown, penalties->ids.size()); ++i) {
      const int64_t id = penalties->ids[i];
      append(text, " %lld (%d)", static_cast<long long>(id),
             penalties->occurrences[static_cast<size_t>(id)]);
    }
    text += "\n";
  }
  for (const auto* const words : {&mask, &bitmask}) {
    if (words->has_value()) {
      text += words == &mask ? "  mask:" : "  bitmask:";
      for (size_t i = 0; i < std::min(kShown, (*words)->size()); ++i) {
        append(text, " %#x", static_cast<uint32_t>((**words)[i]));
      }
      text += "\n";
    }
  }
  if (ranges.has_value()) {
    text += "  ranges:";
    for (const float number : *ranges) {
      append(text, " %a", static_cast<double>(number));
    }
    text += "\n";
  }
  return text;
}

}  // namespace ascend_sample::cpu::testing
