"""The steps that each environment of the matrix goes through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.matrix.environment import Environment

OPERATORS: Final = ("top_k_top_p_sample", "top_k_top_p_sample_v2")
ROWS: Final = 2000
TESTS: Final = {
    "golden rows": ("tests/operators/test_golden.py", "tests/operators/test_golden_v2.py"),
    "parity": ("tests/parity/test_parity.py", "tests/parity/test_parity_v2.py", "tests/parity/test_parity_builtin.py"),
    "conformance": ("tests/conformance",),
    "binding": tuple(
        f"tests/npu/test_{name}.py"
        for name in ("abi", "builtin", "capture", "composite", "memory", "routes", "streams")
    ),
    "faults": ("tests/npu/test_faults.py",),
    "hostcann": ("tests/hostcann/test_activation.py", "tests/hostcann/test_aten.py"),
    "sampling": (
        *("tests/sampling/test_sampler.py", "tests/sampling/test_native_rows.py", "tests/sampling/test_noise.py"),
        *("tests/sampling/test_filters.py", "tests/sampling/test_logprobs.py", "tests/sampling/test_verify_drafts.py"),
    ),
    "decoding": (
        *("tests/decoding/strategies/test_greedy.py", "tests/decoding/strategies/test_sampled.py"),
        *("tests/decoding/beams/test_beam_search.py", "tests/decoding/beams/test_gather_tree.py"),
        *("tests/decoding/speculation/test_speculative.py", "tests/decoding/models/test_module_model.py"),
        "tests/decoding/models/test_transformers_cache.py",
    ),
}
"""The parts of `make test` that meet what differs between versions."""
ALL_DEPENDS_ON: Final = ("install", "build", "import")
"""Where one of these fails, nothing follows."""
NAMES: Final = ("install", "build", "symbols", "import", "verify", *TESTS)
"""All steps, in their order."""


def verify(environment: Environment) -> None:
    """Compares rows of each operator with the reference, on the CPU and on the emulated NPU."""
    for operator in OPERATORS:
        arguments = ("-m", "ascend_sample", "verify", "--operator", operator, "--rows", str(ROWS))
        environment.run(environment.python, *arguments, "--device", "cpu")
        environment.emulated(*arguments, "--device", "npu")


def of(environment: Environment) -> dict[str, Callable[[], object]]:
    """Each step by its name, in their order."""
    first: dict[str, Callable[[], object]] = {
        "install": environment.install,
        "build": environment.build,
        "symbols": environment.check_symbols,
        "import": lambda: environment.emulated(environment.tree / "tests" / "matrix" / "program.py"),
        "verify": lambda: verify(environment),
    }
    return first | {name: lambda tests=tests: environment.test(*tests) for name, tests in TESTS.items()}
