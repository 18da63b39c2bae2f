"""Calls both bindings through torch_npu once in every way that allocates or fails; for `run_sanitized.py`."""

import os
from pathlib import Path

import torch
import torch_npu  # noqa: F401  registers the device

import ascend_sample
from ascend_sample import hostcann
from ascend_sample.npu import scratch
from ascend_sample.npu.operators import OPERATORS
from tests.conformance.hand_worked import SCENARIOS


def check_scenarios(backend: str, dtype: torch.dtype) -> None:
    """Every scenario, with rows that draw and rows that do not."""
    for draws in (True, False):
        rows = [row for row in SCENARIOS if (row.q is not None) == draws]
        logits = torch.tensor([row.logits for row in rows], dtype=dtype).npu()
        k = torch.tensor([row.k for row in rows], dtype=torch.int32).npu()
        p = torch.tensor([row.p for row in rows], dtype=dtype).npu()
        q = torch.tensor([row.q for row in rows]).npu() if draws else None
        with ascend_sample.use_backend(backend):
            for view in (logits, logits.t().contiguous().t()):
                result = ascend_sample.top_k_top_p_sample(view, k, p, q, is_need_logits=True)
                assert result.logits_select_idx.tolist() == [row.token for row in rows]


def check_second_operator(backend: str, dtype: torch.dtype) -> None:
    """As the reference says, with min-p, with and without the sample result."""
    rows = SCENARIOS
    logits = torch.tensor([row.logits for row in rows], dtype=dtype)
    k = torch.tensor([row.k for row in rows], dtype=torch.int32)
    p, min_p = torch.tensor([row.p for row in rows], dtype=dtype), torch.linspace(-0.1, 1.1, len(rows)).to(dtype)
    q = torch.rand(logits.shape) + 0.1
    for noise, dense in ((q, False), (None, True)):
        results = []
        for device, route in (("npu", backend), ("cpu", "reference")):
            tensors = [None if tensor is None else tensor.to(device) for tensor in (logits, k, p, noise, min_p)]
            with ascend_sample.use_backend(route):
                results.append(
                    ascend_sample.top_k_top_p_sample_v2(*tensors, is_need_logits=True, is_need_sample_result=dense)
                )
        actual, expected = results
        assert actual.logits_select_idx.tolist() == expected.logits_select_idx.tolist()
        assert torch.equal(actual.logits_top_kp_select.cpu(), expected.logits_top_kp_select)
        if dense:
            assert torch.allclose(actual.logits_sort_masked.cpu(), expected.logits_sort_masked)


def check_fault(backend: str, site: str, operator: str = "top_k_top_p_sample") -> None:
    """An injected fault is an error of the call or of the synchronisation, and the device goes on."""
    logits = torch.zeros(2, 8, dtype=torch.float16).npu()
    torch.npu.synchronize()
    hostcann.inject(site, OPERATORS[operator].name)
    try:
        with ascend_sample.use_backend(backend):
            getattr(ascend_sample, operator)(logits, 4, 0.5)
        torch.npu.synchronize()
    except RuntimeError as error:
        print(f"{backend}, {site}: {str(error).splitlines()[0]}")
    else:
        raise AssertionError(f"{backend}: the fault in {site} was not reported")
    finally:
        hostcann.clear_faults()


def check_libraries_are_those_to_test(package: Path) -> None:
    """Another copy of the package on Python's path would pass without being instrumented."""
    names = ("/_npu.so", "/libascendcl.so", "/libopapi.so", "/libopapi_math.so")
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = {Path(line.split()[-1]) for line in lines if line.endswith(names)}
    assert len(loaded) == len(names), loaded
    assert all(package in path.parents for path in loaded), loaded


def main() -> None:
    """Both bindings; what fails in the task queue comes last, because the queue does not recover."""
    for backend in ("aclnn", "cffi"):
        for dtype in (torch.float16, torch.bfloat16):
            check_scenarios(backend, dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            check_second_operator(backend, dtype)
        for site in ("phase1", "workspace"):
            for operator in OPERATORS:
                check_fault(backend, site, operator)
        check_scenarios(backend, torch.float16)
    for operator in OPERATORS:
        check_fault("cffi", "phase2", operator)
    check_scenarios("cffi", torch.float16)
    torch.npu.synchronize()
    scratch.release()
    torch.npu.empty_cache()
    assert hostcann.violations() == []
    package = os.environ.get("ASCEND_SAMPLE_EXPECTED_PACKAGE")
    if package:
        check_libraries_are_those_to_test(Path(package))
    print("binding_smoke: passed")


if __name__ == "__main__":
    main()
