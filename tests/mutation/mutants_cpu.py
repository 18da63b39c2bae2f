"""The faults planted in the CPU kernel."""

from __future__ import annotations

from mutants import CPU_DISPATCH, CPU_KERNEL, Mutant

IN_CPU_KERNEL = ("tests/operators/test_operator.py::TestShapesAndStrides", "-k", "default and cpu")
IN_CAPABILITY = ("tests/package/test_backend.py::test_info_shows_the_code_path_of_the_cpu_kernel",)
IN_FUZZ = ("tests/cpu/test_fuzz.py::test_short_run",)
IN_PROBABILITIES = ("tests/operators/test_operator_v2.py::TestProbabilities", "-k", "default and cpu")
IN_ROWS_BY_HAND = ("tests/cpu/test_rows_by_hand.py",)
IN_MIN_P = ("tests/operators/test_operator_v2.py::TestMinP", "-k", "default and cpu")

MUTANTS_CPU = (
    # ---- the CPU kernel: the operator, then its core ----
    Mutant(
        "cpu: the forced code path is ignored",
        CPU_DISPATCH,
        "return *capability;",
        "return best_capability();",
        IN_CAPABILITY,
    ),
    Mutant(
        "cpu: rows of q are taken for contiguous",
        CPU_KERNEL,
        ".q_row_stride = q.has_value() ? q->stride(0) : 0,",
        ".q_row_stride = q.has_value() ? q->size(1) : 0,",
        IN_CPU_KERNEL,
    ),
    Mutant(
        "cpu: a small nucleus is kept until the sum is >= p",
        "csrc/cpu/draw.h",
        "if (cumulated > target)",
        "if (cumulated >= target)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: a large nucleus is kept until the sum is >= p",
        "csrc/cpu/nucleus.h",
        "(weight_with(middle) > target ? high : low) = middle;",
        "(weight_with(middle) >= target ? high : low) = middle;",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: of the ties at the k-th logit, the highest ids stay",
        "csrc/cpu/select.h",
        "      for (; bits != 0; bits &= bits - 1) {\n"
        "        const auto place = static_cast<size_t>(__builtin_ctz(bits));\n",
        "      for (; bits != 0; bits &= ~(0x80000000U >> __builtin_clz(bits))) {\n"
        "        const auto place = static_cast<size_t>(31 - __builtin_clz(bits));\n",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: of the ties that end a large nucleus, the highest ids stay",
        "csrc/cpu/select.h",
        "    for (; bits != 0 && equals != 0; bits &= bits - 1, --equals) {\n"
        "      const size_t id = line * kLine + static_cast<size_t>(__builtin_ctz(bits));\n",
        "    for (; bits != 0 && equals != 0; bits &= ~(0x80000000U >> __builtin_clz(bits)), --equals) {\n"
        "      const size_t id = line * kLine + static_cast<size_t>(31 - __builtin_clz(bits));\n",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: the last logits, less than a line, are left out",
        "csrc/cpu/logits.h",
        "return (vocab_size_ + kLine - 1) / kLine;",
        "return vocab_size_ / kLine;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: the last line is filled up, the last chunk is not",
        "csrc/cpu/logits.h",
        "for (size_t i = rest; i < kChunk; ++i) {",
        "for (size_t i = rest; i % kLine != 0; ++i) {",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: a NaN hides the maximum of its group",
        "csrc/cpu/logits.h",
        "first = larger(line.first, first);",
        "first = larger(first, line.first);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: -0 is below +0",
        "csrc/cpu/select.h",
        "return bits < 0 ? -(bits & 0x7FFFFFFF) : bits;",
        "return bits < 0 ? bits ^ 0x7FFFFFFF : bits;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: logits beside +inf share its mass",
        "csrc/cpu/exponential.h",
        "exponentials[i] = values[i] == maximum ? 1.0 : 0.0;",
        "exponentials[i] = 1.0;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: top-k: q by id",
        "csrc/cpu/kernel.h",
        "draw(work.exponentials, count, total, arguments.noise, arguments.eps, work.scores)",
        "draw(work.exponentials, count, total, [&] {\n"
        "          for (size_t rank = 0; rank < count; ++rank) {\n"
        "            work.values[rank] = arguments.noise[candidates.ids[rank]];\n"
        "          }\n"
        "          return Noise{work.values, 1};\n"
        "        }(), arguments.eps, work.scores)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: top-p: q by id",
        "csrc/cpu/top_p.h",
        "__builtin_fabsf(noise_[rank]) + eps_",
        "__builtin_fabsf(noise_[candidates_.ids[rank]]) + eps_",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: no filter: the last logits get the first noise",
        "csrc/cpu/unfiltered.h",
        "q[whole * kLine + i] : 1.0F",
        "q[i] : 1.0F",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: the stride of q is ignored",
        "csrc/cpu/draw.h",
        "data[static_cast<int64_t>(lane) * stride]",
        "data[static_cast<int64_t>(lane)]",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: no second softmax",
        "csrc/cpu/top_p.h",
        "total = exp_differences(work_.scores, count, work_.scores[0], work_.exponentials);",
        "total = sum(work_.exponentials, count);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: eps is left out",
        "csrc/cpu/draw.h",
        "weight / (__builtin_fabsf(noise) + eps)",
        "weight / (__builtin_fabsf(noise) + 0 * eps)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: a negative q counts as negative",
        "csrc/cpu/draw.h",
        "weight / (__builtin_fabsf(noise) + eps)",
        "weight / (noise + eps)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: the rough sum, without a margin for the exact one's rounding",
        "csrc/cpu/rough.h",
        "constexpr double kMargin = 4e-6;",
        "constexpr double kMargin = 0;",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: the rough sum, without a margin for its own rounding",
        "csrc/cpu/rough.h",
        "(chunks + kChunkLines + 2) * 0x1p-24",
        "(chunks + kChunkLines + 2) * 0x1p-48",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: the rough sum, a rank is drawn that may be cut off",
        "csrc/cpu/top_p.h",
        "bool is_certain = best < sizes.least && scores[best]",
        "bool is_certain = scores[best]",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: the rough sum, a rank of a large nucleus is drawn that may be cut off",
        "csrc/cpu/rough.h",
        "bool is_certain = contenders.ranks[best] < least;",
        "bool is_certain = least > 0;",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: counted: a nucleus is kept until the sum is >= p",
        "csrc/cpu/runs.h",
        "static_cast<double>(middle) * weight_of(run) > target;",
        "static_cast<double>(middle) * weight_of(run) >= target;",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: counted: -0 and +0 are two values",
        "csrc/cpu/tally.h",
        "      column[0] += column[kSign];  // the zeros are equal\n      column[kSign] = 0;\n",
        "",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: counted: NaN of the row before is left in the table",
        "csrc/cpu/tally.h",
        "    forget(Type::kInfinity + 1, kSign);               // NaN\n",
        "",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: counted: ties at the threshold are left out",
        "csrc/cpu/counted.h",
        "runs_.append(bound, k - count);  // ties",
        "count = k - runs_.size;  // ties",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: counted: the highest of equal ids is drawn first",
        "csrc/cpu/counted.h",
        "first.of_run - 1);",
        "runs_.counts[first.run] - first.of_run);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: counted: the depth of the last nucleus is trusted",
        "csrc/cpu/counted.h",
        "    if (!most.has_value()) {\n      return std::nullopt;\n",
        "    if (!most.has_value()) {\n      least = most = all_of(runs_, runs_.size);\n",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: in a large nucleus the least noise wins",
        "csrc/cpu/nucleus.h",
        "static_cast<double>(least) * ratio * (1.0 + 1e-6)",
        "static_cast<double>(least) * (1.0 + 1e-6 / ratio)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: in a large nucleus the rank after the last of a level is taken for the last",
        "csrc/cpu/large_nucleus.h",
        "return rank >= (rank <",
        "return rank + 1 >= (rank <",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: in a large nucleus what is above the gathered is not counted",
        "csrc/cpu/search.h",
        "return gathered_.count_above + count_greater(",
        "return count_greater(",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: no filter: log2 as the bits show it is taken for too high, where it is too low",
        "csrc/cpu/unfiltered.h",
        "contest.best() - 127.0 - kMargin",
        "contest.best() - 127.0 + 43 * kMargin",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: no filter: the bound has no margin for rounding",
        "csrc/cpu/unfiltered.h",
        "constexpr double kMargin = 2e-3;",
        "constexpr double kMargin = 0;",
        IN_ROWS_BY_HAND,
    ),
    Mutant(
        "cpu: the padding of scores falls onto the ids of a sorted nucleus",
        "csrc/cpu/top_k.h",
        "reinterpret_cast<uint32_t*>(values + size + kLine)",
        "reinterpret_cast<uint32_t*>(values + size)",
        IN_FUZZ,
    ),
    # ---- what only the second operator has ----
    Mutant(
        "cpu V2: kept until the sum exceeds p",
        "csrc/cpu/rules.h",
        "return is_second && !has_to_exceed_p ? std::nextafter(wide, -1.0) : wide;",
        "return wide;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: p <= 0 skips top-p", "csrc/cpu/rules.h", "return is_second && p <= 0.0F;", "return false;", IN_FUZZ
    ),
    Mutant(
        "cpu V2: a second softmax after top-p",
        "csrc/cpu/rules.h",
        "return is_second ? exponential : exp_not_positive(",
        "return exp_not_positive(",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: counted: a second softmax after top-p",
        "csrc/cpu/counted.h",
        "return arguments_.is_second ? runs_.exponentials[run] : second_weight(run);",
        "return second_weight(run);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: ks_max is ignored",
        "csrc/cpu/kernel.h",
        "batch.most_k < batch.vocab_size ? batch.most_k :",
        "kMaxTopK < batch.vocab_size ? kMaxTopK :",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: min-p drops an equal weight",
        "csrc/cpu/rules.h",
        "double{weight_of(middle)} >= least",
        "double{weight_of(middle)} > least",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: dense: min-p alone drops an equal weight",
        "csrc/cpu/dense.h",
        "return double{weight_of(value)} >= least;",
        "return double{weight_of(value)} > least;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: min-p alone: q by id",
        "csrc/cpu/min_p.h",
        "  const float* q = contiguous(arguments.noise, found.count, scratch);\n",
        "  auto* q = reinterpret_cast<float*>(scratch.reserve(Scratch::kNoise, found.count * sizeof(float)));\n"
        "  for (size_t i = 0; i < found.count; ++i) {\n"
        "    q[i] = arguments.noise[find_hit(work.hits, i)];\n"
        "  }\n",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: min-p alone: a share near min-p is not looked at",
        "csrc/cpu/min_p.h",
        "  if (count_at_least(kept.values, padded, next_above(upper)) == kept.count) {\n",
        "  if (padded >= kept.count) {\n",
        IN_MIN_P,
    ),
    Mutant(
        "cpu V2: large nucleus: min-p is forgotten",
        "csrc/cpu/large_nucleus.h",
        "    if (!arguments_.stays_surely(end)) {\n",
        "    if (end < 0) {\n",
        IN_MIN_P,
    ),
    Mutant(
        "cpu V2: large nucleus: min-p beyond the nucleus",
        "csrc/cpu/large_nucleus.h",
        "      if (staying > least_count || staying != searcher_.count_above(lower)) {\n",
        "      if (staying != searcher_.count_above(lower)) {\n",
        IN_MIN_P,
    ),
    Mutant(
        "cpu V2: probabilities are softmaxed",
        "csrc/cpu/dense.h",
        "are_weights_(are_probabilities && maximum_ < kInfinity)",
        "are_weights_(false)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: dense: the weights lie by id",
        "csrc/cpu/dense.h",
        "dense_.weights[i] = static_cast<float>(",
        "dense_.weights[candidates_.ids[i]] = static_cast<float>(",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: dense: the ids are places",
        "csrc/cpu/dense.h",
        "dense_.ids[i] = int64_t{candidates_.ids[i]};",
        "dense_.ids[i] = static_cast<int64_t>(i);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: dense: what makes up the number of kept are the kept again",
        "csrc/cpu/dense.h",
        "uint64_t bits = ~bits_of_pair(",
        "uint64_t bits = bits_of_pair(",
        IN_FUZZ,
    ),
    Mutant(
        "cpu V2: dense: what can never be drawn has the score 0 like the others",
        "csrc/cpu/dense.h",
        "if (!(scores[best] > 0.0F)) {",
        "if (!(scores[best] > -1.0F)) {",
        IN_PROBABILITIES,
    ),
    Mutant(
        "cpu V2: in a large nucleus of probabilities -inf stands for what is dropped",
        "csrc/cpu/large_nucleus.h",
        "kWeight == Weight::kValue ? 0.0F : -kInfinity",
        "-kInfinity",
        IN_FUZZ,
    ),
    # ---- rows of which a mask left little ----
    Mutant(
        "cpu: masked: what is left gets the first noise",
        "csrc/cpu/draw.h",
        "out[i] = (*this)[chosen[i]];",
        "out[i] = (*this)[i];",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: masked: what is left gets noise of the next vector",
        "csrc/cpu/noise.h",
        "philox_.bits_from(first))",
        "philox_.bits_from(first + kLanes))",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: masked: a place among what is left is taken for an id",
        "csrc/cpu/kernel.h",
        "std::optional<size_t>(unmasked->ids[*place])",
        "std::optional<size_t>(*place)",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: masked: the second line of a pair is left out",
        "csrc/cpu/unmasked.h",
        "uint64_t{bits_above_lowest(Type::load(pair + kLine))} << kLine",
        "uint64_t{0 & bits_above_lowest(Type::load(pair + kLine))} << kLine",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: masked: the status is always good",
        "csrc/cpu/kernel.h",
        "*arguments.status = unmasked->status;",
        "*arguments.status = RowStatus::kOk;",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: masked: the temperature is left out",
        "csrc/cpu/kernel.h",
        "divide(values, count, maximum, temperature, values);",
        "divide(values, count, maximum, 1.0F, values);",
        IN_FUZZ,
    ),
    Mutant(
        "cpu: masked: a row of which nothing is left gives its last id",
        "csrc/cpu/kernel.h",
        "  if (count == 0) {\n    return 0;\n",
        "  if (count == 0) {\n    return row.vocab_size() - 1;\n",
        IN_FUZZ,
    ),
)
