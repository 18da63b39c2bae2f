// The memory of one thread: what it keeps from row to row and from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contract.h"

namespace ascend_sample::cpu {

inline constexpr size_t kMostCandidates = kMaxTopK;
/// Candidates are sorted as they are collected, a few more than are wanted; beyond this many, the
/// wanted ones are picked first.
inline constexpr size_t kMostSorted = 2 * kMostCandidates;
/// What is gathered at most of a nucleus whose end bounds of the sum tell.
inline constexpr size_t kMostGathered = 16384;
inline constexpr size_t kSampleLines = 128;  // of a sample of a row

/// Memory for elements of any type, aligned to 64. It grows and never shrinks; when it grows, what
/// it held is lost. It is not initialised, so that it costs nothing until it is touched.
class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  /// Makes room for at least so many.
  template <typename Element>
  [[gnu::always_inline]] Element* reserve(size_t count) {
    if (const size_t bytes = count * sizeof(Element); bytes > bytes_) {
      grow(bytes);
    }
    return as<Element>();
  }
  template <typename Element>
  [[gnu::always_inline]] Element* as() const {
    return static_cast<Element*>(data_);
  }

  size_t bytes() const { return bytes_; }

 private:
  void grow(size_t bytes);

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// The same for elements of one type.
template <typename Element>
class Array {
 public:
  [[gnu::always_inline]] Element* reserve(size_t count) { return block_.reserve<Element>(count); }
  [[gnu::always_inline]] operator Element*() const { return block_.as<Element>(); }

 private:
  Block block_;
};

/// Elements that are all 0 wherever a row has been sampled: who writes one clears it again.
template <typename Element>
class Zeros {
 public:
  [[gnu::always_inline]] Element* reserve(size_t count) {
    const size_t bytes = block_.bytes();
    Element* const elements = block_.reserve<Element>(count);
    if (block_.bytes() > bytes) {
      __builtin_memset(elements, 0, block_.bytes());
    }
    return elements;
  }

  /// Those that there are now.
  std::span<const Element> held() const {
    return {block_.as<Element>(), block_.bytes() / sizeof(Element)};
  }

 private:
  Block block_;
};

/// One number a chunk for each.
struct ChunkSums {
  Array<float> maxima;
  Array<double> sums;
  Array<float> distances;  // scan_distances
  Array<double> exponentials;
};

/// Pairs of lines, and the bits of their logits that were found.
struct Hits {
  Array<uint64_t> bits;
  Array<uint32_t> pairs;
  size_t count = 0;
};

/// What worked for the nucleus of the row before is tried first, since rows tend to be alike.
/// Results do not depend on it.
struct History {
  double depth = 0;   // of the nucleus: from the logarithm of the row's sum to its last logit
  uint8_t large = 0;  // rows one after the other whose nucleus was large

  [[gnu::always_inline]] bool is_likely_large() const { return large > 1; }
  [[gnu::always_inline]] void note_large(bool is_large) {
    large = !is_large ? 0 : large == 0 ? 1 : 2;
  }
};

/// One thread's arrays, each named for what it holds of a row.
struct Workspace {
  History history;

  // Of every row: make_room reserves these.

  Block last_chunk;  // of the row as it came, filled up
  ChunkSums chunk_sums;
  Array<float> maxima;         // of groups
  Array<float> folded_maxima;  // of larger groups
  Hits hits;
  Array<float> values;  // candidates, or what a search gathers
  Array<uint32_t> ids;
  Array<float> weights;         // of the values
  Array<float> exponents;       // y of the values
  Array<float> room_values[2];  // what a search still has, in turns
  Array<float> room_weights[2];
  Array<float> sample_values;  // of lines of the row
  Array<float> sample_weights;
  Array<float> inside_values;  // those of a sample in a bracket; room for another search of few
  Array<float> inside_weights;
  Array<float> sorted_values;  // candidates in the total order
  Array<uint32_t> sorted_ids;
  Array<uint64_t> keys;  // of a sort of candidates
  Array<uint64_t> other_keys;
  Array<double> exponentials;  // of candidates, by rank, or of a chunk
  Array<float> scores;         // of the same
  Array<float> last_noise;     // of the last line, filled up
  Array<float> noise_minima;   // of chunks of ranks
  Array<float> segment_noise;
  Array<float> segment_scores;

  // Of some rows: who writes one reserves it. Copies of a row have room for whole chunks.

  Block strided;        // a row whose logits are apart, side by side
  Block edited;         // the row after its edits, or edited logits alone, each in its place
  Array<float> listed;  // logits that are edited, in the order of their list
  Block allowed;        // what a mask allows, if that is one a line at most
  Array<uint32_t> allowed_ids;
  Array<float> top_k_row;     // a row with -inf for what top-k does not keep
  Array<float> divided;       // a row divided by its temperature
  Array<float> infinities;    // a row with 0 for +inf, -inf for all else
  Array<float> min_p_values;  // what min-p keeps, side by side
  Array<float> filtered;      // a row as all filters leave it, or its probabilities
  Array<float> noise;         // of lanes, or of ranks, side by side
  Array<uint64_t> row_keys;   // of a sort of any number
  Array<double> row_exponentials;
  Array<float> row_values;  // in the total order
  Array<uint32_t> row_ids;
  Zeros<uint32_t> marks;  // bits of ids that are edited, by line
  Zeros<float> proposal;  // what a draft was drawn from, by id
};

}  // namespace ascend_sample::cpu
