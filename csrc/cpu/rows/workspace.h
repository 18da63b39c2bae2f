// One thread's memory for a row.
#pragma once

#include "contract.h"
#include "cpu/rows/row.h"
#include "cpu/scratch.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

inline constexpr size_t kMostCandidates = kMaxTopK;
/// Candidates are sorted as they are collected, a few more than are wanted; beyond this many, the
/// wanted ones are picked first.
inline constexpr size_t kMostSorted = 2 * kMostCandidates;
/// What is gathered at most of a nucleus whose end bounds of the sum tell.
inline constexpr size_t kMostGathered = 16384;
inline constexpr size_t kSampleLines = 128;  // of a sample of a row

/// Arrays of every row, in one piece of the scratch. The large ones cost nothing until touched.
struct Workspace {
  explicit Workspace(Scratch& scratch, size_t vocab_size) {
    const size_t padded = (vocab_size + kChunk - 1) / kChunk * kChunk;
    const size_t chunks = padded / kChunk;
    // The arrays are laid out twice: first to learn the size, then in the memory.
    lay_out(nullptr, padded, chunks);
    lay_out(scratch.reserve(Scratch::kRow, bytes_), padded, chunks);
  }

  float* last_chunk;
  float* last_chunk_of_copy;
  float* last_noise;
  ChunkSums chunk_sums;
  float* maxima;
  float* folded_maxima;
  Hits hits;
  float* values;  // candidates, or what a search gathers
  uint32_t* ids;
  float* weights;
  float* room_values[2];
  float* room_weights[2];
  float* sorted_values;
  uint32_t* sorted_ids;
  uint64_t* keys;
  uint64_t* other_keys;
  double* exponentials;
  float* scores;
  double* second_scores;
  float* sample_values;
  float* sample_weights;
  float* inside_values;
  float* inside_weights;
  float* noise_minima;
  float* segment_noise;
  float* segment_scores;
  float* allowed;  // what a mask allows, if that is one a line at most: logits of any type
  uint32_t* allowed_ids;

 private:
  template <typename Element>
  void place(Element*& array, std::byte* memory, size_t count) {
    array = reinterpret_cast<Element*>(memory + bytes_);
    bytes_ += (count * sizeof(Element) + 63) / 64 * 64;
  }

  void lay_out(std::byte* memory, size_t padded, size_t chunks) {
    bytes_ = 0;
    const size_t pairs = padded / kLine / 2 + 1;
    place(last_chunk, memory, kChunk);
    place(last_chunk_of_copy, memory, kChunk);
    place(last_noise, memory, kChunk);
    place(chunk_sums.maxima, memory, chunks);
    place(chunk_sums.sums, memory, chunks);
    place(chunk_sums.distances, memory, chunks);
    place(chunk_sums.exponentials, memory, chunks);
    place(maxima, memory, padded);
    place(folded_maxima, memory, padded / 2 + kLine);
    place(hits.bits, memory, pairs);
    place(hits.pairs, memory, pairs);
    place(values, memory, padded + kChunk);
    place(ids, memory, padded + kChunk);
    place(weights, memory, padded + kChunk);
    for (const size_t i : {0, 1}) {
      place(room_values[i], memory, padded + kChunk);
      place(room_weights[i], memory, padded + kChunk);
    }
    place(sorted_values, memory, kMostSorted + kLine);
    place(sorted_ids, memory, kMostSorted + kLine);
    place(keys, memory, kMostSorted);
    place(other_keys, memory, kMostSorted);
    place(exponentials, memory, kChunk);
    place(scores, memory, kChunk);
    place(second_scores, memory, kChunk);
    place(sample_values, memory, kSampleLines * kLine);
    place(sample_weights, memory, kSampleLines * kLine);
    place(inside_values, memory, kSampleLines * kLine + kLine);
    place(inside_weights, memory, kSampleLines * kLine + kLine);
    place(noise_minima, memory, padded / kChunk + 1);
    place(segment_noise, memory, padded / kSegment + kLanes);
    place(segment_scores, memory, padded / kSegment + kLine);
    place(allowed, memory, padded / kLine);
    place(allowed_ids, memory, padded / kLine);
  }

  size_t bytes_ = 0;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
