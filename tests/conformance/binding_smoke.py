"""Calls both bindings through torch_npu once in every way that allocates or fails; for `run_sanitized.py`."""

import itertools
import os
from pathlib import Path

import torch
import torch_npu  # noqa: F401  registers the device

import ascend_sample
import hostcann
from ascend_sample.npu import scratch
from tests.npu.batches import SAMPLE, VARIANTS, aclnn_name, check_equal, make_batch, use_variant
from tests.npu.conftest import ROUTES

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_results(variant: str) -> None:
    """With noise and without, in two layouts."""
    for dtype, with_q in itertools.product(DTYPES[: 2 if variant == SAMPLE else 3], (True, False)):
        host = make_batch(dtype=dtype, with_q=with_q)
        batch = host.to("npu")
        for layout in (batch, batch.each(lambda tensor: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor)):
            check_equal(layout.sample(), host.expected())


def check_fault(site: str) -> None:
    """An injected fault is an error of the call or of the synchronisation, and the device goes on."""
    batch = make_batch().to("npu")
    torch.npu.synchronize()
    hostcann.inject(site, aclnn_name())
    try:
        batch.sample()
        torch.npu.synchronize()
    except RuntimeError as error:
        print(f"{site}: {str(error).splitlines()[0]}")
    else:
        raise AssertionError(f"the fault in {site} was not reported")
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
    """What fails in the task queue is left out: the queue does not recover."""
    for route, variant in itertools.product(ROUTES, VARIANTS):
        with ascend_sample.use_backend(route), use_variant(variant):
            check_results(variant)
            for site in ("phase1", "workspace", *["phase2"] * (route == "cffi")):
                check_fault(site)
            check_results(variant)
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
