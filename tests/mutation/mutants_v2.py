"""The faults planted in what only the second operator has, and in what both bindings keep from call to call."""

from __future__ import annotations

from tests.mutation.mutants import (
    CFFI_CALL,
    COMPOSITE,
    IN_ABI,
    IN_BUILTIN,
    IN_CONFORMANCE,
    IN_MEMORY,
    NPU_CALL,
    NPU_KERNEL,
    NPU_LOOKUP,
    Mutant,
)

REFERENCE = "ascend_sample/reference_v2.py"
VALIDATE = "ascend_sample/_validate.py"
ROW_MODEL = "ascend_sample/parity/row_model.py"
COMPARE = "ascend_sample/parity/compare.py"
CFFI = "ascend_sample/npu/aclnn_cffi.py"
CFFI_SCRATCH = "ascend_sample/npu/scratch.py"
AUTOGRAD = "csrc/autograd.cpp"
CHECKS = "csrc/checks.cpp"
NPU_SCRATCH = "csrc/npu/scratch.cpp"
HOST_ROW = "csrc/hostcann/opapi/top_k_top_p_sample_v2_row.cpp"
HOST_API = "csrc/hostcann/opapi/top_k_top_p_sample_v2_api.cpp"

IN_OPERATOR = ("tests/operators/test_operator_v2.py", "tests/operators/test_golden_v2.py")
IN_REFERENCE = (*IN_OPERATOR, "-k", "reference")
IN_COMPOSITE = (*IN_OPERATOR, "-k", "cpu and not reference")
IN_HOSTCANN = (*IN_OPERATOR, "-k", "npu and not composite")
IN_PARITY = ("tests/parity/test_parity_v2.py",)
IN_BAD_INPUT = ("tests/operators/test_bad_input.py", "-k", "v2")
IN_CAPTURE = ("tests/npu/test_capture.py", "-k", "V2")
IN_STREAMS = ("tests/npu/test_streams.py::test_order", "tests/npu/test_memory.py", "-k", "V2")

MUTANTS_V2 = (
    # ---- the reference ----
    Mutant(
        "reference V2: kept while the sum is <= p, instead of < p",
        REFERENCE,
        "(sums[:-1] < p).sum()",
        "(sums[:-1] <= p).sum()",
        IN_REFERENCE,
    ),
    Mutant("reference V2: p <= 0 skips top-p", REFERENCE, "keeps_one = p <= 0", "keeps_one = False", IN_REFERENCE),
    Mutant(
        "reference V2: ks_max is not rounded up",
        REFERENCE,
        "return -(-ks_max // KS_MAX_MULTIPLE) * KS_MAX_MULTIPLE",
        "return ks_max",
        IN_REFERENCE,
    ),
    Mutant("reference V2: min-p drops an equal weight", REFERENCE, "wide >= min_p *", "wide > min_p *", IN_REFERENCE),
    Mutant(
        "reference V2: min_p >= 1 is skipped",
        REFERENCE,
        "use_min_p = min_p > 0",
        "use_min_p = 0 < min_p < 1",
        IN_REFERENCE,
    ),
    Mutant(
        "reference V2: q by id with min-p alone",
        REFERENCE,
        "q[: kept.numel()]",
        "q[kept] if not (use_k or use_p or keeps_one) else q[: kept.numel()]",
        IN_REFERENCE,
    ),
    Mutant(
        "reference V2: probabilities are softmaxed",
        REFERENCE,
        "    if input_is_logits:\n        return softmax(x)\n",
        "    if True:\n        return softmax(x)\n",
        IN_REFERENCE,
    ),
    # ---- conversion and checks ----
    Mutant(
        "checks: q beside a sample result is let through",
        CHECKS,
        "!(arguments.is_need_sample_result && arguments.q.has_value())",
        "true",
        IN_BAD_INPUT,
    ),
    Mutant("checks: ks_max has no upper bound", CHECKS, "&& arguments.ks_max <= kMaxKsMax", "", IN_BAD_INPUT),
    Mutant(
        "validate: min_p is not looked at",
        VALIDATE,
        "return None if min_p is None else _convert",
        "return None if True else _convert",
        (*IN_BAD_INPUT[:-2], "tests/operators/test_operator_v2.py", "-k", "v2 or MinP"),
    ),
    Mutant(
        "validate: a number that int64 does not hold is passed on",
        VALIDATE,
        "if not -INT64_LIMIT <= value < INT64_LIMIT:",
        "if False:",
        IN_BAD_INPUT,
    ),
    Mutant(
        "validate: eps is not tried as a float",
        VALIDATE,
        '        _as_float(eps, "eps", "be a float", "Use the default, 1e-8.", op)\n',
        "        pass\n",
        IN_BAD_INPUT,
    ),
    Mutant(
        "validate: a p that no float holds is a bare OverflowError",
        VALIDATE,
        'else _as_float(value, name, FRACTION_RULE, f"None skips {skipped}.", op)',
        "else float(value)",
        IN_BAD_INPUT,
    ),
    Mutant(
        "autograd: a backward through weights names another result",
        AUTOGRAD,
        "context->set_materialize_grads(false);",
        "context->set_materialize_grads(true);",
        ("tests/operators/test_dispatch.py", "-k", "derivative"),
    ),
    # ---- the composite ----
    Mutant(
        "composite V2: kept while the sum is <= p",
        COMPOSITE,
        "sums < p.clamp_min(0)",
        "sums <= p.clamp_min(0)",
        IN_COMPOSITE,
    ),
    Mutant(
        "composite V2: q by rank with min-p alone",
        COMPOSITE,
        "at::where(by_rank, rank, position_among_kept(ids, kept))",
        "at::where(by_rank, rank, rank)",
        IN_COMPOSITE,
    ),
    Mutant("composite V2: min-p drops an equal weight", COMPOSITE, "(wide >= m *", "(wide > m *", IN_COMPOSITE),
    Mutant("composite V2: min_p >= 1 keeps ties", COMPOSITE, ".logical_and(m < 1)", "", IN_COMPOSITE),
    Mutant(
        "composite V2: filtered probabilities are -inf",
        COMPOSITE,
        "const double filler = rules.input_is_logits ? -kInfinity : 0.0;",
        "const double filler = -kInfinity;",
        IN_COMPOSITE,
    ),
    Mutant(
        "composite: an infinite weight does not take the whole mass",
        COMPOSITE,
        "at::where(is_infinite, infinite, finite)",
        "at::where(is_infinite, infinite, infinite)",
        ("tests/operators/test_operator.py", "-k", "composite and cpu"),
    ),
    # ---- the NPU binding ----
    Mutant(
        "binding V2: min_p is not passed on", NPU_KERNEL, "field.value_or(at::Tensor())", "at::Tensor()", IN_BUILTIN
    ),
    Mutant(
        "binding: the results come before the arguments",
        NPU_KERNEL,
        "std::tuple_cat(inputs, outputs)",
        "std::tuple_cat(outputs, inputs)",
        IN_BUILTIN,
    ),
    Mutant(
        "binding V2: ks_max is not passed on",
        NPU_KERNEL,
        "      return field;\n",
        "        return std::is_same_v<Field, int64_t> ? static_cast<Field>(1024) : field;\n",
        IN_BUILTIN,
    ),
    Mutant(
        "binding V2: the id that CANN does not promise is returned",
        NPU_KERNEL,
        "        plan(best, call_.make_ones(arguments.k), /*is_for_id=*/true);\n",
        "",
        IN_HOSTCANN,
    ),
    Mutant(
        "binding V2: the id beside a sample result is that of the heaviest kept entry",
        NPU_KERNEL,
        "  return results;\n",
        "  if constexpr (requires { arguments.is_need_sample_result; }) {\n"
        "    if (arguments.is_need_sample_result) {\n"
        "      const auto heaviest = std::get<3>(results).argmax(-1, true);\n"
        "      std::get<0>(results).copy_(std::get<2>(results).gather(1, heaviest).squeeze(1));\n"
        "    }\n"
        "  }\n"
        "  return results;\n",
        IN_HOSTCANN,
        include="ATen/ATen.h",
    ),
    Mutant(
        "binding V2: the launch for the id writes the sample result again",
        NPU_KERNEL,
        "        best.is_need_sample_result = false;\n",
        "",
        IN_HOSTCANN,
    ),
    Mutant(
        "binding: the launch for the id has the k of the call",
        NPU_CALL,
        "return make_k(k, std::numeric_limits<int32_t>::max(), 1);",
        "return make_k(k, 0, kSkipTopK);",
        IN_ABI,
    ),
    Mutant(
        "binding V2: too little memory for the unwanted outputs",
        NPU_KERNEL,
        "static_cast<int64_t>(results.itemsize())",
        "int64_t{sizeof(float)}",
        IN_MEMORY,
    ),
    Mutant(
        "binding: the smallest workspace serves all launches",
        NPU_CALL,
        "left.workspace_size < right.workspace_size",
        "left.workspace_size > right.workspace_size",
        IN_MEMORY,
    ),
    Mutant(
        "binding: an obstacle ends with a full stop",
        NPU_LOOKUP,
        '        obstacle_ += ". " + found_in_;\n',
        '        obstacle_ += ". " + found_in_ + ".";\n',
        ("tests/npu/test_routes.py::test_missing_symbol",),
    ),
    Mutant(
        "binding: a missing second operator is an obstacle of the first",
        NPU_LOOKUP,
        "    functions->operators[op] =\n",
        "    obstacle = functions->operators[op].obstacle;\n    functions->operators[op] =\n",
        ("tests/npu/test_routes.py::test_the_other_operator_is_not_needed",),
    ),
    Mutant(
        "binding: no CANN is named where the operator is missing",
        NPU_LOOKUP,
        "if (!found_in_.empty())",
        "if (false)",
        ("tests/npu/test_routes.py::test_missing_symbol",),
    ),
    Mutant(
        "binding: a captured call takes the stream's block",
        NPU_SCRATCH,
        "  if (is_captured(stream)) {",
        "  if (false && is_captured(stream)) {",
        IN_CAPTURE,
    ),
    Mutant(
        "binding: one block for all streams",
        NPU_SCRATCH,
        "by_stream[{logits.device().index(), stream}]",
        "by_stream[{logits.device().index(), nullptr}]",
        IN_STREAMS,
    ),
    Mutant(
        "binding: a block for every call",
        NPU_SCRATCH,
        "block.memory.numel() < bytes",
        "block.memory.numel() != bytes + 1",
        IN_MEMORY,
    ),
    Mutant(
        "binding: the unwanted outputs begin at the valid k",
        NPU_CALL,
        "scratch_address() + valid_k_bytes(logits_.size(0))",
        "scratch_address()",
        ("tests/npu/test_abi.py",),
    ),
    # ---- the cffi binding ----
    Mutant(
        "cffi V2: the id that CANN does not promise is returned",
        CFFI,
        '    if options.get("is_need_sample_result"):\n',
        "    if False:\n",
        ("tests/operators/test_golden_v2.py", "-k", "cffi"),
    ),
    Mutant(
        "cffi V2: the launch for the id has the k of the call",
        CFFI_CALL,
        "is_for_best = best_into is not None",
        "is_for_best = False",
        IN_ABI,
    ),
    Mutant(
        "cffi V2: a second workspace for the id",
        CFFI,
        "best_into=call.results[0]).run(workspace)",
        "best_into=call.results[0]).run()",
        IN_MEMORY,
    ),
    Mutant(
        "cffi: a direct call's error does not say which operator",
        CFFI_CALL,
        'raise NotImplementedError(f"{self.op}: {reason}.") from None',
        "raise",
        ("tests/npu/test_routes.py::test_missing_symbol",),
    ),
    Mutant(
        "cffi: a captured call takes the stream's block",
        CFFI_SCRATCH,
        "if npu.is_current_stream_capturing():",
        "if False:",
        IN_CAPTURE,
    ),
    Mutant(
        "cffi: one block for all streams",
        CFFI_SCRATCH,
        "_blocks[stream.stream_id, stream.device_index, stream.device_type]",
        "_blocks[0, stream.device_index, stream.device_type]",
        IN_STREAMS,
    ),
    # ---- hostcann's operator ----
    Mutant(
        "hostcann V2: kept until the sum is > p",
        HOST_ROW,
        "if (sum >= static_cast<double>(arguments_.top_p)) return place + 1;",
        "if (sum > static_cast<double>(arguments_.top_p)) return place + 1;",
        IN_HOSTCANN,
    ),
    Mutant(
        "hostcann V2: min-p after ties at the largest weight",
        HOST_ROW,
        "kept_ids_[i] == best",
        "kept_weights_[i] == heaviest",
        IN_HOSTCANN,
    ),
    Mutant(
        "hostcann V2: q by id with min-p alone",
        HOST_ROW,
        "arguments_.q[static_cast<int64_t>(i)]",
        "arguments_.q[kept_ids_[i]]",
        IN_HOSTCANN,
    ),
    Mutant(
        "hostcann V2: ks_max is not rounded up",
        HOST_ROW,
        "(arguments.ks_max + 7) / 8 * 8",
        "arguments.ks_max",
        IN_HOSTCANN,
    ),
    Mutant(
        "hostcann V2: the shape of an unwanted output is not checked",
        "csrc/hostcann/opapi/sampler.cpp",
        "    // Outputs also when",
        '    if (std::string(argument->name) == "logitsIdxOut") continue;\n    // Outputs also when',
        IN_CONFORMANCE,
    ),
    Mutant(
        "hostcann V2: q beside a sample result is taken",
        HOST_API,
        "if (options.need_sample_result && q != nullptr) {",
        "if (false && q != nullptr) {",
        IN_CONFORMANCE,
    ),
    # ---- parity ----
    Mutant(
        "parity V2: a wide tolerance of min-p", ROW_MODEL, "MIN_P_TOLERANCE = 1e-5", "MIN_P_TOLERANCE = 1e-2", IN_PARITY
    ),
    Mutant(
        "parity V2: a tolerance where min-p is exact",
        ROW_MODEL,
        "float(np.float32(least)) == least",
        "False",
        IN_PARITY,
    ),
    Mutant(
        "parity V2: sums that reach p are not told from those that exceed it",
        ROW_MODEL,
        "strict = count(row.p, row.rules.must_exceed_p)",
        "strict = count(row.p, True)",
        IN_PARITY,
    ),
    Mutant(
        "parity V2: the ids of the sample result are not compared",
        COMPARE,
        "if (result.dense_ids[:count] != ids).any():",
        "if False:",
        IN_PARITY,
    ),
    Mutant(
        "parity V2: the ids of kept entries that weigh 0 are not compared",
        COMPARE,
        "same &= (expected.dense_ids == actual.dense_ids).all(dim=1)",
        "same &= ((expected.dense_ids == actual.dense_ids) | (expected.dense_weights == 0)).all(dim=1)",
        IN_PARITY,
    ),
)
