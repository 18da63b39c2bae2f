"""Every code path through the operators: rows by hand, and one result whatever arithmetic the calling thread has set.

The kernel rounds to nearest, and knows subnormals. `test_fuzz.py` compares the code paths without the operators.
"""

from __future__ import annotations

from tests.support.code_paths import assert_same_on_all_code_paths

PROGRAM = """
import contextlib
import ctypes
import os

import torch

from tests.cpu.test_rows_by_hand import check_all

check_all()

ROWS, VOCAB_SIZE = 16, 3000
FE_UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}[os.uname().machine]
MATHS = ctypes.CDLL("libm.so.6")
OPERATORS = torch.ops.ascend_sample


@contextlib.contextmanager
def without_subnormals():
    assert torch.set_flush_denormal(True)
    yield
    assert (torch.tensor([1e-30]) * 1e-10).item() == 0, "a call has changed the thread's arithmetic"
    torch.set_flush_denormal(False)


@contextlib.contextmanager
def rounding_up():
    assert MATHS.fesetround(FE_UPWARD) == 0
    yield
    assert MATHS.fegetround() == FE_UPWARD, "a call has changed the thread's arithmetic"
    MATHS.fesetround(0)


def make_rows(dtype, storage, bits):
    generator = torch.Generator().manual_seed(bits)
    logits = torch.randint(1, 1 << bits, (ROWS, VOCAB_SIZE), generator=generator).to(storage).view(dtype)
    calls = []
    for k, p in ((5, 1.0), (0, 0.9), (0, 1.0), (20, 0.5)):
        calls.append((torch.full((ROWS,), k, dtype=torch.int32), torch.full((ROWS,), p)))
    q = torch.empty(ROWS, VOCAB_SIZE).exponential_(generator=generator)
    return logits, calls, [p.to(dtype) for _, p in calls], q


def sample(logits, calls, ps, q):
    number, ones, zeros = torch.arange(ROWS), torch.ones(ROWS), torch.zeros(ROWS)
    found = list(OPERATORS.row_logprobs(logits, None, number, 5)[:2])
    found.append(OPERATORS.exponential_noise(VOCAB_SIZE, number, number))
    for (k, p), as_logits in zip(calls, ps):
        found += OPERATORS.top_k_top_p_sample(logits, k, as_logits, q, 1e-8, True)
        found += OPERATORS.sample_rows(logits, None, ones, k, p, zeros, number, number)[:2]
        found.append(OPERATORS.filter_logits(logits, ones, k, p, zeros, 0))
    return found


for kind in ((torch.float32, torch.int32, 22), (torch.float16, torch.int16, 9), (torch.bfloat16, torch.int16, 6)):
    rows = make_rows(*kind)  # all below the least normal number
    expected = sample(*rows)
    for arithmetic in (without_subnormals, rounding_up):
        with arithmetic():
            actual = sample(*rows)
        for place, (one, other) in enumerate(zip(actual, expected)):
            assert torch.equal(one, other), (arithmetic.__name__, kind, place)
    print([result.double().sum().item().hex() for result in expected])
"""


def test_every_code_path_whatever_the_arithmetic_of_the_calling_thread() -> None:
    assert_same_on_all_code_paths(PROGRAM)
