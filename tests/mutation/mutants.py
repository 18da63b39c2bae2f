"""The planted faults: each is one that a person could make, and that some test must catch.

Every fault replaces one exact piece of text that occurs once. `tests` are the pytest arguments that are tried first;
they must pass without the fault.
"""

from __future__ import annotations

from dataclasses import dataclass

REFERENCE = "ascend_sample/reference.py"
VALIDATE = "ascend_sample/_validate.py"
ROW_MODEL = "ascend_sample/parity/row_model.py"
COMPARE = "ascend_sample/parity/compare.py"
CFFI_CALL = "ascend_sample/npu/aclnn_call.py"
COMPOSITE = "csrc/composite.cpp"
CPU_KERNEL = "csrc/cpu/top_k_top_p_sample_kernel.cpp"
NPU_KERNEL = "csrc/npu/top_k_top_p_sample_kernel.cpp"
NPU_CALL = "csrc/npu/sampler_call.cpp"
NPU_CALL_PHASES = "csrc/npu/sampler_call.h"
NPU_HANDLES = "csrc/npu/handles.cpp"
NPU_OWNERS = "csrc/npu/handles.h"
NPU_LOOKUP = "csrc/npu/cann.cpp"
HOST_ROW = "csrc/hostcann/opapi/top_k_top_p_sample_row.cpp"
HOST_ORDER = "csrc/hostcann/opapi/ordered_row.cpp"
HOST_API = "csrc/hostcann/opapi/top_k_top_p_sample_api.cpp"
HOST_EXECUTOR = "csrc/hostcann/opapi/executor.cpp"

LIBRARIES = {
    "csrc/composite": "_C",
    "csrc/checks.cpp": "_C",
    "csrc/cpu/": "_C",
    "csrc/npu/": "_npu",
    "csrc/hostcann/opapi/": "libopapi",
}
"""Which extension of setup.py must be built again, by the beginning of a file's path."""

IN_REFERENCE = ("tests/test_reference.py", "tests/test_operator.py", "-k", "reference")
IN_COMPOSITE = ("tests/test_operator.py", "-k", "composite and cpu")
IN_CPU_KERNEL = ("tests/test_operator.py::TestShapesAndStrides", "-k", "default and cpu")
IN_CAPABILITY = ("tests/test_backend.py::test_info_shows_the_code_path_of_the_cpu_kernel",)
IN_FUZZ = ("tests/cpu/test_fuzz.py::test_short_run",)
IN_ROWS_BY_HAND = ("tests/cpu/test_rows_by_hand.py",)
IN_HOSTCANN = ("tests/test_operator.py", "-k", "default and npu")
IN_CONVERSION = ("tests/test_convert.py",)
IN_PARITY = ("tests/test_parity.py",)
IN_ABI = ("tests/npu/test_abi.py",)
IN_BUILTIN = ("tests/npu/test_builtin.py",)
IN_MEMORY = ("tests/npu/test_memory.py",)
IN_STREAMS = ("tests/npu/test_streams.py::test_order",)
IN_FAULTS = (
    "tests/npu/test_faults.py::test_fault_is_reported_and_the_next_call_works[1-top_k_top_p_sample]",
    "tests/npu/test_faults.py::test_queued_launch_fails_at_the_next_synchronisation[1-top_k_top_p_sample]",
)
IN_ROUTES = ("tests/npu/test_routes.py::test_unsupported_soc",)
IN_CONFORMANCE = ("tests/conformance/test_own_process.py",)


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: what is wrong.
        file: where, from the project's folder.
        old: the text that is replaced.
        new: the text that is there instead.
        tests: pytest arguments of the tests that are tried first.
        include: a header that the new text needs.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    include: str = ""

    @property
    def library(self) -> str | None:
        """The extension that holds the fault; None for Python."""
        return next((library for start, library in LIBRARIES.items() if self.file.startswith(start)), None)

    @property
    def is_in_core(self) -> bool:
        """Whether the fault is in the CPU kernel's core, which tests/cpu builds by itself, without torch."""
        return self.file.startswith("csrc/cpu/") and self.file != CPU_KERNEL


MUTANTS = (
    # ---- the reference ----
    Mutant(
        "reference: kept while the sum is < p, instead of <= p",
        REFERENCE,
        "(sums[:-1] <= p).sum()",
        "(sums[:-1] < p).sum()",
        IN_REFERENCE,
    ),
    Mutant(
        "reference: one entry too many",
        REFERENCE,
        "return 1 + int((sums[:-1]",
        "return 2 + int((sums[:-1]",
        IN_REFERENCE,
    ),
    Mutant(
        "reference: q by id in branches A and B",
        REFERENCE,
        'q if branch == "C" else q[: kept.numel()]',
        'q if branch == "C" else q[kept]',
        IN_REFERENCE,
    ),
    Mutant(
        "reference: ties to the highest id",
        REFERENCE,
        "return torch.sort(x, descending=True, stable=True).indices",
        "return x.numel() - 1 - torch.sort(x.flip(0), descending=True, stable=True).indices",
        IN_REFERENCE,
    ),
    Mutant(
        "reference: segments merged in the wrong order",
        REFERENCE,
        "torch.cat([kept, candidates + start])",
        "torch.cat([candidates + start, kept])",
        IN_REFERENCE,
    ),
    Mutant(
        "reference: no second softmax",
        REFERENCE,
        "softmax(probabilities[kept], masked=has_no_mass(x)[kept])",
        "softmax(x[kept])",
        IN_REFERENCE,
    ),
    Mutant(
        "reference: the guess decides the result",
        REFERENCE,
        "        if not guess_hit:\n            kept = total_order(x)\n",
        "",
        IN_REFERENCE,
    ),
    Mutant(
        "reference: k above 1024 honoured",
        REFERENCE,
        "use_k = 1 <= k <= min(vocab_size, MAX_TOP_K)",
        "use_k = 1 <= k <= vocab_size",
        IN_REFERENCE,
    ),
    Mutant(
        "reference: a negative q counts as negative",
        REFERENCE,
        "weights / (q.abs() + torch",
        "weights / (q + torch",
        IN_REFERENCE,
    ),
    # ---- the composite ----
    Mutant(
        "composite: kept while the sum is < p, instead of <= p",
        COMPOSITE,
        "(sums_before(probabilities) <= p_float)",
        "(sums_before(probabilities) < p_float)",
        IN_COMPOSITE,
    ),
    Mutant(
        "composite: q by rank in branch C",
        COMPOSITE,
        "at::where(neither, q->gather(1, ids), *q)",
        "at::where(neither, *q, *q)",
        IN_COMPOSITE,
    ),
    Mutant(
        "composite: no second softmax",
        COMPOSITE,
        "at::where(only_p, probabilities, values)",
        "at::where(only_p, values, values)",
        IN_COMPOSITE,
    ),
    Mutant(
        "composite: k above 1024 honoured",
        COMPOSITE,
        "std::min(vocab_size, kMaxTopK)",
        "vocab_size",
        IN_COMPOSITE,
    ),
    Mutant(
        "composite: an infinite kept logit comes back as 0",
        COMPOSITE,
        "ids, sorted.masked_fill(kept",
        "ids, values.masked_fill(kept",
        IN_COMPOSITE,
    ),
    # ---- the CPU kernel: the operator, then its core ----
    Mutant(
        "cpu: the forced code path is ignored",
        CPU_KERNEL,
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
        "if (cumulated > static_cast<double>(p))",
        "if (cumulated >= static_cast<double>(p))",
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
        "draw(work.exponentials, count, arguments.noise, arguments.eps, work.scores)",
        "draw(work.exponentials, count, [&] {\n"
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
        "    exp_differences(work_.scores, count, work_.scores[0], work_.exponentials);\n",
        "",
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
        "if (!most.has_value() || (arguments_.kept",
        "if (!most.has_value() ? runs_.size < 8 : (arguments_.kept",
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
    # ---- the compiled binding ----
    Mutant(
        "binding: topK and topP swapped",
        NPU_KERNEL,
        "x, valid_k, top_p, noise, eps,",
        "x, top_p, valid_k, noise, eps,",
        IN_ABI,
    ),
    Mutant(
        "binding: half of the workspace",
        NPU_CALL,
        "std::min(call.workspace_size, kMaxAllocation)",
        "std::min(call.workspace_size / 2, kMaxAllocation)",
        IN_MEMORY,
    ),
    Mutant(
        "binding: one workspace for every stream",
        NPU_CALL,
        "    const auto workspace = at::empty({size}, logits_.options().dtype(at::kByte));\n",
        "    static at::Tensor workspace;\n"
        "    if (!workspace.defined() || workspace.numel() < size) {\n"
        "      workspace = at::empty({size}, logits_.options().dtype(at::kByte));\n"
        "    }\n",
        (*IN_STREAMS, *IN_MEMORY),
    ),
    Mutant(
        "binding: the workspace is freed before the kernel has run",
        NPU_CALL,
        "  const auto status =\n"
        "      call.phase2(call.workspace, call.workspace_size, call.executor.release(), stream);\n",
        '    const auto take = reinterpret_cast<int (*)(void**, size_t, int)>(dlsym(RTLD_DEFAULT, "aclrtMalloc"));\n'
        '    const auto give = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "aclrtFree"));\n'
        "    take(&call.workspace, call.workspace_size + 1, 0);\n"
        "    const auto status =\n"
        "        call.phase2(call.workspace, call.workspace_size, call.executor.release(), stream);\n"
        "    give(call.workspace);\n",
        IN_STREAMS,
        include="dlfcn.h",
    ),
    Mutant(
        "binding: the status of phase 1 is ignored",
        NPU_CALL_PHASES,
        '    check_status(status, call.phase1_name, "workspace", launch_->label);\n',
        "    (void)status;\n",
        IN_FAULTS,
    ),
    Mutant(
        "binding: the status of phase 2 is ignored",
        NPU_CALL,
        '  check_status(status, call.phase2_name, "launch", label);\n',
        "  (void)status;\n",
        IN_FAULTS,
    ),
    Mutant(
        "binding: a stale status is looked at",
        NPU_CALL_PHASES,
        "    const auto status = phase1(&call.workspace_size, &executor);\n",
        "    static aclnnStatus previous = 0;\n"
        "    const auto status = std::exchange(previous, phase1(&call.workspace_size, &executor));\n",
        IN_FAULTS,
        include="utility",
    ),
    Mutant(
        "binding: an executor that is never run is leaked",
        NPU_OWNERS,
        "{ aclnn().aclDestroyAclOpExecutor(executor); }",
        "{ (void)executor; }",
        IN_FAULTS,
    ),
    Mutant(
        "binding: tensors are leaked",
        NPU_OWNERS,
        "{ aclnn().aclDestroyTensor(tensor); }",
        "{ (void)tensor; }",
        IN_BUILTIN,
    ),
    Mutant(
        "binding: k = 0 reaches the device",
        NPU_CALL,
        "scalar_for_cann(op, 0)",
        "scalar_for_cann(op, -1)",
        IN_ABI,
    ),
    Mutant(
        "binding: k is passed on as it is",
        NPU_KERNEL,
        "const auto* valid_k = call.make_valid(k);",
        'const auto* valid_k = (call.make_valid(k), call.describe("k", k));',
        IN_ABI,
    ),
    Mutant(
        "binding: no room for the valid k",
        NPU_CALL,
        "take_scratch(valid_k_bytes(logits.size(0)) + logits.numel() * unwanted_bytes,",
        "take_scratch(logits.numel() * unwanted_bytes,",
        IN_BUILTIN,
    ),
    Mutant(
        "binding: the storage offset is left out",
        NPU_HANDLES,
        "tensor.storage_offset(), static_cast<int64_t>(",
        "0, static_cast<int64_t>(",
        IN_MEMORY,
    ),
    Mutant(
        "binding: the offset is counted twice",
        NPU_HANDLES,
        "const_cast<void*>(storage.data())",
        "const_cast<void*>(tensor.const_data_ptr())",
        IN_MEMORY,
    ),
    Mutant(
        "binding: eps as float",
        NPU_KERNEL,
        "top_p, noise, eps,",
        "top_p, noise, static_cast<float>(eps),",
        IN_ABI,
    ),
    Mutant(
        "binding: top_k_guess is not passed on",
        NPU_KERNEL,
        "is_need_logits, top_k_guess, ids, select",
        "is_need_logits, int64_t{32}, ids, select",
        IN_ABI,
    ),
    Mutant(
        "binding: launched on the default stream",
        NPU_CALL,
        "launch_->stream = c10_npu::getCurrentNPUStream().stream(/*need_empty=*/false);",
        "launch_->stream = nullptr;",
        IN_STREAMS,
    ),
    Mutant(
        "binding: no rule about alignment",
        NPU_HANDLES,
        "address % kAddressAlignment == 0",
        "address % 2 == 0",
        IN_MEMORY,
    ),
    Mutant(
        "binding: 2^32 logits are let through",
        NPU_CALL,
        "logits.size(0) <= kMaxElements / logits.size(1)",
        "logits.size(0) <= kMaxElements",
        IN_MEMORY,
    ),
    Mutant(
        "binding: every SoC is supported",
        NPU_LOOKUP,
        "reason.empty() &&",
        "false && reason.empty() &&",
        IN_ROUTES,
    ),
    # ---- the cffi binding ----
    Mutant(
        "cffi: k = 0 reaches the device",
        CFFI_CALL,
        "tensor = torch.threshold(tensor, 0, SKIP_TOP_K, out=valid_k)",
        "tensor = valid_k.copy_(tensor)",
        IN_ABI,
    ),
    Mutant(
        "cffi: the status of phase 2 is ignored",
        CFFI_CALL,
        '                cann.check(status, cann.operator.phase_2, "launch", self.logits)\n',
        "",
        IN_FAULTS,
    ),
    Mutant(
        "cffi: an executor that is never run is leaked",
        CFFI_CALL,
        "if executor[0] != ffi.NULL:",
        "if False:",
        IN_FAULTS,
    ),
    # ---- hostcann's operator ----
    Mutant(
        "hostcann: kept until the sum is >= p",
        HOST_ROW,
        "if (sum > static_cast<double>(arguments_.top_p))",
        "if (sum >= static_cast<double>(arguments_.top_p))",
        IN_HOSTCANN,
    ),
    Mutant("hostcann: one entry too many", HOST_ROW, "return i + 1;", "return std::min(i + 2, limit);", IN_HOSTCANN),
    Mutant(
        "hostcann: ties to the highest id",
        HOST_ORDER,
        "std::partial_sort(keys_.begin(), keys_.begin() + count, keys_.end());",
        "std::partial_sort(keys_.begin(), keys_.begin() + count, keys_.end(), [](uint64_t a, uint64_t b) {\n"
        "      return a >> 32 != b >> 32 ? a < b : a > b;\n"
        "    });",
        IN_HOSTCANN,
    ),
    Mutant("hostcann: q by id in branches A and B", HOST_ROW, "arguments_.q[i]", "arguments_.q[id(i)]", IN_HOSTCANN),
    Mutant(
        "hostcann: no second softmax",
        HOST_ROW,
        "softmax(kept, probability);  //",
        "softmax(kept, [this](int64_t rank) { return values_[ranked_id(rank)]; });  //",
        IN_HOSTCANN,
    ),
    Mutant(
        "hostcann: k above 1024 honoured",
        HOST_ROW,
        "arguments.top_k <= std::min(vocab_size_, kMaximumTopK)",
        "arguments.top_k <= vocab_size_",
        IN_HOSTCANN,
    ),
    Mutant(
        "hostcann: filtered logits are 0",
        HOST_ROW,
        "selected[i] = kMinusInfinity;",
        "selected[i] = 0.0f;",
        IN_HOSTCANN,
    ),
    Mutant(
        "hostcann: the strides of k are ignored",
        HOST_API,
        "top_k[row * launch.input(1).strides[0]]",
        "top_k[row]",
        IN_BUILTIN,
    ),
    Mutant(
        "hostcann: the strides of p are ignored",
        HOST_API,
        "decode_float(top_p, row * launch.input(2).strides[0],",
        "decode_float(top_p, row,",
        IN_MEMORY,
    ),
    Mutant(
        "hostcann: an executor serves twice",
        HOST_EXECUTOR,
        "if (found != nullptr && !*found->repeatable) found = executor_table().take(executor);",
        "",
        IN_CONFORMANCE,
    ),
    # ---- conversions ----
    Mutant(
        "validate: a tensor's p < 1 rounds up to 1",
        VALIDATE,
        "value = torch.where((value > 0) & (value < 1), converted.clamp(smallest, largest), converted)",
        "value = converted",
        IN_CONVERSION,
    ),
    Mutant(
        "validate: a number's p < 1 rounds up to 1",
        VALIDATE,
        "number = max(smallest, min(number, largest))",
        "number = max(smallest, number)",
        IN_CONVERSION,
    ),
    Mutant(
        "validate: a wide k wraps",
        VALIDATE,
        "k.to(torch.int64).clamp(-1, SKIP_TOP_K).to(torch.int32)",
        "k.to(torch.int32)",
        IN_CONVERSION,
    ),
    # ---- parity ----
    Mutant("parity: a wide tolerance at the cut", ROW_MODEL, "CUT_TOLERANCE = 2e-5", "CUT_TOLERANCE = 2e-2", IN_PARITY),
    Mutant(
        "parity: a wide tolerance of the draw", ROW_MODEL, "DRAW_TOLERANCE = 1e-5", "DRAW_TOLERANCE = 1e-2", IN_PARITY
    ),
    Mutant(
        "parity: a tolerance where sums are exact",
        ROW_MODEL,
        "exact = has_exact_sums(weights)",
        "exact = False",
        IN_PARITY,
    ),
    Mutant(
        "parity: kept logits are not compared",
        COMPARE,
        "        same &= bits(expected.kept).eq(bits(actual.kept)).all(dim=1)\n",
        "        pass\n",
        IN_PARITY,
    ),
)
