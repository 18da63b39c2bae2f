"""The faults planted in the CPU kernel."""

from __future__ import annotations

from tests.mutation.mutants import CPU_DISPATCH, CPU_KERNEL, Mutant

IN_CPU_KERNEL = ("tests/operators/test_operator.py::TestShapesAndStrides", "-k", "default and cpu")
IN_CAPABILITY = ("tests/package/test_backend.py::test_info_shows_the_code_path_of_the_cpu_kernel",)
IN_FUZZ = ("tests/cpu/test_fuzz.py::test_short_run",)
IN_PROBABILITIES = ("tests/operators/test_operator_v2.py::TestProbabilities", "-k", "default and cpu")
IN_ROWS_BY_HAND = ("tests/cpu/test_rows_by_hand.py",)
IN_MIN_P = ("tests/operators/test_operator_v2.py::TestMinP", "-k", "default and cpu")

MUTANTS_CPU = (
    # ---- the CPU kernel: the operator, then its core ----
    Mutant(
        "cpu: the forced code path is ignored", CPU_DISPATCH, "return *target;", "return best_target();", IN_CAPABILITY
    ),
    Mutant(
        "cpu: rows of q are taken for contiguous",
        CPU_KERNEL,
        "call.q = {q->template const_data_ptr<float>(), q->stride(0), q->stride(1)};",
        "call.q = {q->template const_data_ptr<float>(), q->size(1), q->stride(1)};",
        IN_CPU_KERNEL,
    ),
    Mutant(
        "cpu: a small nucleus is kept until the sum is >= p",
        "csrc/cpu/draws/draw.h",
        "if (cumulated > target)",
        "if (cumulated >= target)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: a large nucleus is kept until the sum is >= p",
        "csrc/cpu/filters/large_nucleus.h",
        "(weight_with(middle) > target ? high : low) = middle;",
        "(weight_with(middle) >= target ? high : low) = middle;",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: of the ties at the k-th logit, the highest ids stay",
        "csrc/cpu/rows/hits.h",
        "      for (; bits != 0; bits &= bits - 1) {\n"
        "        const auto place = static_cast<size_t>(__builtin_ctz(bits));\n",
        "      for (; bits != 0; bits &= ~(0x80000000U >> __builtin_clz(bits))) {\n"
        "        const auto place = static_cast<size_t>(31 - __builtin_clz(bits));\n",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: of the ties that end a large nucleus, the highest ids stay",
        "csrc/cpu/rows/kept.h",
        "    for (; bits != 0 && equals != 0; bits &= bits - 1, --equals) {\n"
        "      const size_t id = line * kLine + static_cast<size_t>(__builtin_ctz(bits));\n",
        "    for (; bits != 0 && equals != 0; bits &= ~(0x80000000U >> __builtin_clz(bits)), --equals) {\n"
        "      const size_t id = line * kLine + static_cast<size_t>(31 - __builtin_clz(bits));\n",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: the last logits, less than a line, are left out",
        "csrc/cpu/rows/row.h",
        "return (vocab_size_ + kLine - 1) / kLine;",
        "return vocab_size_ / kLine;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: the last line is filled up, the last chunk is not",
        "csrc/cpu/rows/row.h",
        "for (size_t i = rest; i < kChunk; ++i) {",
        "for (size_t i = rest; i % kLine != 0; ++i) {",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: a NaN hides the maximum of its group",
        "csrc/cpu/rows/formats.h",
        "first = larger(line.first, first);",
        "first = larger(first, line.first);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: -0 is below +0",
        "csrc/cpu/vectors/total_order.h",
        "return bits < 0 ? -(bits & 0x7FFFFFFF) : bits;",
        "return bits < 0 ? bits ^ 0x7FFFFFFF : bits;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: logits beside +inf share its mass",
        "csrc/cpu/vectors/exponential.h",
        "exponentials[i] = values[i] == maximum ? 1.0 : 0.0;",
        "exponentials[i] = 1.0;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: top-k: q by id",
        "csrc/cpu/branches.h",
        "draw(work.exponentials, count, total, *arguments.noise, arguments.eps, work.scores)",
        "draw(work.exponentials, count, total, [&] {\n"
        "          for (size_t rank = 0; rank < count; ++rank) {\n"
        "            work.values[rank] = (*arguments.noise)[candidates.ids[rank]];\n"
        "          }\n"
        "          return Noise{work.values, 1};\n"
        "        }(), arguments.eps, work.scores)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: top-p: q by id",
        "csrc/cpu/filters/top_p.h",
        "__builtin_fabsf(noise[rank]) + arguments_.eps",
        "__builtin_fabsf(noise[candidates_.ids[rank]]) + arguments_.eps",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: no filter: the last logits get the first noise",
        "csrc/cpu/draws/race.h",
        "q[whole * kLine + i] : 1.0F",
        "q[i] : 1.0F",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: the stride of q is ignored",
        "csrc/cpu/draws/noise.h",
        "data_[static_cast<int64_t>(lane) * stride_]",
        "data[static_cast<int64_t>(lane)]",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: no second softmax",
        "csrc/cpu/filters/top_p.h",
        "total = exp_differences(work_.scores, count, work_.scores[0], work_.exponentials);",
        "total = sum(work_.exponentials, count);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: eps is left out",
        "csrc/cpu/draws/draw.h",
        "weight / (__builtin_fabsf(noise) + eps)",
        "weight / (__builtin_fabsf(noise) + 0 * eps)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: a negative q counts as negative",
        "csrc/cpu/draws/draw.h",
        "weight / (__builtin_fabsf(noise) + eps)",
        "weight / (noise + eps)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: the approximate sum, without a margin for the exact one's rounding",
        "csrc/cpu/filters/sum_bounds.h",
        "constexpr double kMargin = 4e-6;",
        "constexpr double kMargin = 0;",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: the approximate sum, without a margin for its own rounding",
        "csrc/cpu/filters/sum_bounds.h",
        "(chunks + kChunkLines + 2) * 0x1p-24",
        "(chunks + kChunkLines + 2) * 0x1p-48",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: the approximate sum, a rank is drawn that may be cut off",
        "csrc/cpu/filters/top_p.h",
        "bool is_certain = best < sizes.least && scores[best]",
        "bool is_certain = scores[best]",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: the approximate sum, a rank of a large nucleus is drawn that may be cut off",
        "csrc/cpu/filters/sum_bounds.h",
        "bool is_certain = contenders.ranks[best] < least;",
        "bool is_certain = least > 0;",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: histogram: a nucleus is kept until the sum is >= p",
        "csrc/cpu/filters/bins.h",
        "static_cast<double>(middle) * weight_of(bin) > target;",
        "static_cast<double>(middle) * weight_of(bin) >= target;",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: histogram: -0 and +0 are two values",
        "csrc/cpu/filters/histogram.h",
        "      column[0] += column[kSign];  // the zeros are equal\n      column[kSign] = 0;\n",
        "",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: histogram: NaN of the row before is left in the table",
        "csrc/cpu/filters/histogram.h",
        "    forget(Type::kInfinity + 1, kSign);               // NaN\n",
        "",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: histogram: ties at the threshold are left out",
        "csrc/cpu/filters/histogram_filters.h",
        "bins_.append(bound, k - count);  // ties",
        "count = k - bins_.size;  // ties",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: histogram: the highest of equal ids is drawn first",
        "csrc/cpu/filters/histogram_filters.h",
        "first.of_bin - 1);",
        "bins_.counts[first.bin] - first.of_bin);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: histogram: the depth of the last nucleus is trusted",
        "csrc/cpu/filters/histogram_filters.h",
        "    if (!most.has_value()) {\n      return std::nullopt;\n",
        "    if (!most.has_value()) {\n      least = most = whole_prefix(bins_, bins_.size);\n",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: in a large nucleus the least noise wins",
        "csrc/cpu/draws/contenders.h",
        "static_cast<double>(least) * ratio * (1.0 + 1e-6)",
        "static_cast<double>(least) * (1.0 + 1e-6 / ratio)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: in a large nucleus the rank after the last of a level is taken for the last",
        "csrc/cpu/filters/large_nucleus.h",
        "return rank >= (rank <",
        "return rank + 1 >= (rank <",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: in a large nucleus what is above the gathered is not counted",
        "csrc/cpu/filters/quantile.h",
        "return gathered_.count_above + count_greater(",
        "return count_greater(",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: no filter: log2 as the bits show it is taken for too high, where it is too low",
        "csrc/cpu/draws/race.h",
        "race.best() - 127.0 - kMargin",
        "race.best() - 127.0 + 43 * kMargin",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: no filter: the bound has no margin for rounding",
        "csrc/cpu/draws/race.h",
        "constexpr double kMargin = 2e-3;",
        "constexpr double kMargin = 0;",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: the padding of scores falls onto the ids of a sorted nucleus",
        "csrc/cpu/filters/top_k.h",
        "reinterpret_cast<uint32_t*>(values + size + kLine)",
        "reinterpret_cast<uint32_t*>(values + size)",
        IN_FUZZ,
    ),
    # ---- what only the second operator has ----
    Mutant(
        "cpu V2: kept until the sum exceeds p",
        "csrc/cpu/filters/rules.h",
        "return rules.has_to_exceed_p ? wide : std::nextafter(wide, -1.0);",
        "return wide;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: p <= 0 skips top-p",
        "csrc/cpu/filters/rules.h",
        "return rules.keeps_one_at_p_0 && p <= 0.0F;",
        "return false;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: a second softmax after top-p",
        "csrc/cpu/filters/rules.h",
        "return rules.softmaxes_again ? exp_not_positive(",
        "return true ? exp_not_positive(",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: histogram: a second softmax after top-p",
        "csrc/cpu/filters/histogram_filters.h",
        "return arguments_.rules.softmaxes_again ? second_weight(bin) : bins_.exponentials[bin];",
        "return second_weight(bin);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: ks_max is ignored", "csrc/cpu/filters/rules.h", "k <= rules.most_k &&", "k <= kMaxTopK &&", IN_FUZZ
    ),
    Mutant(
        "cpu V2: min-p drops an equal weight",
        "csrc/cpu/filters/rules.h",
        "double{weight_of(middle)} >= least",
        "double{weight_of(middle)} > least",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: sample result: min-p alone drops an equal weight",
        "csrc/cpu/filters/sample_result.h",
        "return double{weight_of(value)} >= least;",
        "return double{weight_of(value)} > least;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: min-p alone: q by id",
        "csrc/cpu/filters/min_p.h",
        "  const float* q = contiguous(*arguments.noise, found.count, scratch);\n",
        "  auto* q = reinterpret_cast<float*>(scratch.reserve(Scratch::kNoise, found.count * sizeof(float)));\n"
        "  for (size_t i = 0; i < found.count; ++i) {\n"
        "    q[i] = (*arguments.noise)[find_hit(work.hits, i)];\n"
        "  }\n",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: min-p alone: a share near min-p is not looked at",
        "csrc/cpu/filters/min_p.h",
        "  if (count_at_least(kept.values, padded, next_above(upper)) == kept.count) {\n",
        "  if (padded >= kept.count) {\n",
        IN_MIN_P,
    ),
    Mutant(
        "cpu V2: large nucleus: min-p is forgotten",
        "csrc/cpu/filters/large_nucleus.h",
        "    if (!arguments_.stays_surely(end)) {\n",
        "    if (end < 0) {\n",
        IN_MIN_P,
    ),
    Mutant(
        "cpu V2: large nucleus: min-p beyond the nucleus",
        "csrc/cpu/filters/large_nucleus.h",
        "      if (staying > least_count || staying != search_.count_above(lower)) {\n",
        "      if (staying != search_.count_above(lower)) {\n",
        IN_MIN_P,
    ),
    Mutant(
        "cpu V2: probabilities are softmaxed",
        "csrc/cpu/filters/sample_result.h",
        "are_weights_(are_probabilities && maximum_ < kInfinity)",
        "are_weights_(false)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: sample result: the weights lie by id",
        "csrc/cpu/filters/sample_result.h",
        "result_->weights[i] = static_cast<float>(",
        "result_->weights[candidates_.ids[i]] = static_cast<float>(",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: sample result: the ids are places",
        "csrc/cpu/filters/sample_result.h",
        "result_->ids[i] = int64_t{candidates_.ids[i]};",
        "result_->ids[i] = static_cast<int64_t>(i);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: sample result: what makes up the number of kept are the kept again",
        "csrc/cpu/filters/sample_result.h",
        "uint64_t bits = ~bits_of_pair(",
        "uint64_t bits = bits_of_pair(",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: sample result: what can never be drawn has the score 0 like the others",
        "csrc/cpu/filters/sample_result.h",
        "if (!(scores[best] > 0.0F)) {",
        "if (!(scores[best] > -1.0F)) {",
        IN_PROBABILITIES,
    ),
    Mutant(
        "cpu V2: in a large nucleus of probabilities -inf stands for what is dropped",
        "csrc/cpu/filters/large_nucleus.h",
        "kWeight == Weight::kValue ? 0.0F : -kInfinity",
        "-kInfinity",
        IN_FUZZ,
    ),
    # ---- rows of which a mask left little ----
    Mutant(
        "cpu: masked: what is left gets the first noise",
        "csrc/cpu/draws/noise.h",
        "out[i] = (*this)[chosen[i]];",
        "out[i] = (*this)[i];",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: masked: a place among what is left is taken for an id",
        "csrc/cpu/branches.h",
        "std::optional<size_t>(compacted->ids[*place])",
        "std::optional<size_t>(*place)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: masked: the second line of a pair is left out",
        "csrc/cpu/rows/compaction.h",
        "uint64_t{bits_above_lowest(Type::load(pair + kLine))} << kLine",
        "uint64_t{0 & bits_above_lowest(Type::load(pair + kLine))} << kLine",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: masked: the status is always good",
        "csrc/cpu/branches.h",
        "arguments.status.front() = compacted->status;",
        "arguments.status.front() = RowStatus::kOk;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: masked: a row of which nothing is left gives its last id",
        "csrc/cpu/branches.h",
        "  if (count == 0) {\n    return 0;\n",
        "  if (count == 0) {\n    return row.vocab_size() - 1;\n",
        IN_FUZZ,
    ),
)
