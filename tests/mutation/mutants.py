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
CPU_KERNEL = "csrc/cpu/torch/top_k_top_p_sample_kernel.cpp"
CPU_DISPATCH = "csrc/cpu/torch/dispatch.cpp"
NPU_KERNEL = "csrc/npu/top_k_top_p_sample_kernel.cpp"
NPU_CALL = "csrc/npu/sampler_call.cpp"
NPU_CALL_PHASES = "csrc/npu/sampler_call.h"
NPU_HANDLES = "csrc/npu/handles.cpp"
NPU_OWNERS = "csrc/npu/handles.h"
NPU_LOOKUP = "csrc/npu/cann.cpp"
HOST_ROW = "csrc/hostcann/opapi/top_k_top_p_sample_row.cpp"
HOST_ORDER = "csrc/hostcann/opapi/ordered_row.cpp"
HOST_ROWS = "csrc/hostcann/opapi/sampler.cpp"
HOST_EXECUTOR = "csrc/hostcann/opapi/executor.cpp"

LIBRARIES = {
    "csrc/composite": "_C",
    "csrc/autograd.cpp": "_C",
    "csrc/checks.cpp": "_C",
    "csrc/cpu/": "_C",
    "csrc/npu/": "_npu",
    "csrc/hostcann/opapi/": "libopapi",
}
"""Which extension of setup.py must be built again, by the beginning of a file's path."""

IN_REFERENCE = ("tests/operators/test_reference.py", "tests/operators/test_operator.py", "-k", "reference")
IN_COMPOSITE = ("tests/operators/test_operator.py", "-k", "composite and cpu")
IN_HOSTCANN = ("tests/operators/test_operator.py", "-k", "default and npu")
IN_CONVERSION = ("tests/operators/test_convert.py",)
IN_PARITY = ("tests/parity/test_parity.py",)
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
        "composite: kept while the sum is < p, instead of <= p", COMPOSITE, ": sums <= p;", ": sums < p;", IN_COMPOSITE
    ),
    Mutant(
        "composite: q by rank in branch C",
        COMPOSITE,
        "const auto place = at::where(by_rank, rank, ids);",
        "const auto place = at::where(by_rank, rank, rank);",
        IN_COMPOSITE,
    ),
    Mutant(
        "composite: no second softmax",
        COMPOSITE,
        "at::where(only_p, weights, rows.shared)",
        "at::where(only_p, rows.shared, rows.shared)",
        IN_COMPOSITE,
    ),
    Mutant(
        "composite: k above 1024 honoured", COMPOSITE, "largest_k(rules.ks_max, vocab_size)", "vocab_size", IN_COMPOSITE
    ),
    Mutant(
        "composite: an infinite kept logit comes back as 0",
        COMPOSITE,
        "ids, rows.values.masked_fill(dropped",
        "ids, rows.shared.masked_fill(dropped",
        IN_COMPOSITE,
    ),
    # ---- the compiled binding ----
    Mutant(
        "binding: the valid k goes where logits and topP belong",
        NPU_KERNEL,
        "return &field == &arguments.k ? k",
        "return &field != &arguments.k ? k",
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
        "    return at::empty({size}, logits_.options().dtype(at::kByte));\n",
        "    static at::Tensor workspace;\n"
        "    if (!workspace.defined() || workspace.numel() < size) {\n"
        "      workspace = at::empty({size}, logits_.options().dtype(at::kByte));\n"
        "    }\n"
        "    return workspace;\n",
        (*IN_STREAMS, *IN_MEMORY),
    ),
    Mutant(
        "binding: the workspace is freed before the kernel has run",
        NPU_CALL,
        "  const auto status = call.phase2(workspace, call.workspace_size, call.executor.release(), stream);\n",
        "    void* early = nullptr;\n"
        '    const auto take = reinterpret_cast<int (*)(void**, size_t, int)>(dlsym(RTLD_DEFAULT, "aclrtMalloc"));\n'
        '    const auto give = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "aclrtFree"));\n'
        "    take(&early, call.workspace_size + 1, 0);\n"
        "    const auto status = call.phase2(early, call.workspace_size, call.executor.release(), stream);\n"
        "    give(early);\n",
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
        "return make_k(k, 0, kSkipTopK);",
        "return make_k(k, -1, kSkipTopK);",
        IN_ABI,
    ),
    Mutant(
        "binding: k is passed on as it is", NPU_KERNEL, "return &field == &arguments.k ? k", "return false ? k", IN_ABI
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
        "      return field;\n",
        "        return static_cast<Field>(static_cast<float>(field));\n",
        IN_ABI,
    ),
    Mutant(
        "binding: top_k_guess is not passed on",
        NPU_KERNEL,
        "      return field;\n",
        "        return std::is_same_v<Field, int64_t> ? static_cast<Field>(32) : field;\n",
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
        "if (found.obstacle.empty() &&",
        "if (false && found.obstacle.empty() &&",
        IN_ROUTES,
    ),
    # ---- the cffi binding ----
    Mutant(
        "cffi: k = 0 reaches the device",
        CFFI_CALL,
        "tensor = torch.threshold(tensor, self.replaced_up_to, self.replacement, out=valid_k)",
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
        "hostcann: filtered logits are 0", HOST_ROW, "selected[i] = kMinusInfinity;", "selected[i] = 0.0f;", IN_HOSTCANN
    ),
    Mutant(
        "hostcann: the strides of k are ignored",
        HOST_ROWS,
        "top_k_[row * launch_.input(1).strides[0]]",
        "top_k_[row]",
        IN_BUILTIN,
    ),
    Mutant(
        "hostcann: the strides of p are ignored",
        HOST_ROWS,
        ".top_p = top_p_[row],",
        ".top_p = decode_float(top_p_.data, row, top_p_.type),",
        IN_MEMORY,
    ),
    Mutant(
        "hostcann: an executor serves twice",
        HOST_EXECUTOR,
        "if (found != nullptr && !*found->repeatable) found = table<aclOpExecutor>().take(executor);",
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
        "if has_exact_sums(weights) and",
        "if False and",
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
