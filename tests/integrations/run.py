"""Runs the adapters inside vLLM, vllm_ascend and SGLang, in environments under ``build/`` (``make test-integrations``).

Each environment has the pinned packages that the sampler modules import, and each tested version of the engine without
its dependencies. Where a module still cannot be imported, the reason is printed; the adapter is then tested against
the interface alone, as `test_vllm_interface.py` and `test_sglang_interface.py` do in every run of pytest.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from ascend_sample.integrations import sglang, vllm
from tests.support.environments import PINS, PIP_INSTALL, environment_of, must, passes, run, variables

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "integrations"


class Engine(NamedTuple):
    """An engine, and how it is tested.

    Attributes:
        name: of its package.
        versions: those that are tested.
        modules: what has to be importable for that.
        tests: the files.
        preparation: what is done before the modules are imported.
        beside: packages that it needs beside those of its environment.
    """

    name: str
    versions: tuple[str, ...]
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    preparation: str = ""
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def environment(self) -> str:
        """Returns the name of its environment: vllm_ascend's is vLLM's."""
        return self.name.partition("_")[0]


ON_NPU = "from tests.integrations import emulated_npu; "
TORCH_NPU = ("torch_npu", PINS["torch_npu"])
ENGINES = (
    Engine(
        "vllm",
        vllm.TESTED_VERSIONS,
        (
            "vllm.v1.sample.ops.topk_topp_sampler",
            "vllm.v1.sample.sampler",
            "vllm.v1.sample.logits_processor",
            "vllm.v1.sample.rejection_sampler",
            "vllm.v1.worker.gpu_input_batch",
        ),
        ("vllm_parity.py", "vllm_v2_parity.py", "vllm_drafts_parity.py", "vllm_requests.py", "xgrammar_masks.py"),
    ),
    *(
        Engine(
            "vllm_ascend",
            (version,),
            (
                "vllm_ascend.sample.sampler",
                "vllm_ascend.sample.rejection_sampler",
                "vllm_ascend.worker.npu_input_batch",
            ),
            ("vllm_ascend_parity.py",),
            ON_NPU,
            (("vllm", version.partition("rc")[0]), TORCH_NPU),
        )
        for version in vllm.TESTED_ASCEND_VERSIONS
    ),
    Engine(
        "sglang",
        sglang.TESTED_VERSIONS,
        ("sglang.srt.layers.sampler", "sglang.srt.plugins", "sglang.srt.speculative.eagle_utils"),
        ("sglang_backend.py", "sglang_drafts_parity.py", "sglang_requests.py"),
        "import torchvision_without_cuda; ",
    ),
    Engine(
        "sglang",
        sglang.TESTED_VERSIONS,
        ("sglang.srt.layers.sampler", "sglang.srt.model_executor.model_runner"),
        ("sglang_npu.py",),
        f"{ON_NPU}import torchvision_without_cuda; ",
        (TORCH_NPU,),
    ),
)


def package_folder(name: str, version: str, python: Path) -> Path:
    """A package alone, without dependencies; an engine without compiled kernels: they need its devices' libraries."""
    folder = BUILD / f"{name}-{version}"
    if not folder.exists():
        print(f"  installing {name}=={version}, without its dependencies", flush=True)
        partial = folder.with_name(f"{folder.name}-partial")
        shutil.rmtree(partial, ignore_errors=True)
        must(python, *PIP_INSTALL, "--no-deps", "--target", partial, f"{name}=={version}")
        for library in (partial / name).rglob("*.so") if name in {engine.name for engine in ENGINES} else ():
            library.unlink()
        partial.rename(folder)
    return folder


def check(engine: Engine, version: str, python: Path) -> bool:
    """Test one version; returns whether it is as it should be."""
    metadata = BUILD / "metadata"
    metadata.mkdir(exist_ok=True)
    must(sys.executable, ROOT / "setup.py", "--quiet", "egg_info", "--egg-base", metadata)
    packages = [package_folder(*package, python) for package in ((engine.name, version), *engine.beside)]
    folders = (*packages, ROOT, ROOT / "tests" / "integrations", metadata)
    environment = variables(BUILD, folders)
    print(" ".join((engine.name, version, *("-".join(package) for package in engine.beside))), flush=True)

    def import_error(*modules: str) -> str | None:
        finished = run(python, "-c", f"{engine.preparation}import {', '.join(modules)}", environment=environment)
        return finished.stdout.strip().splitlines()[-1] if finished.returncode != 0 else None

    if import_error(*engine.modules) is not None:
        for module in engine.modules:
            print(f"  {module}: {import_error(module) or 'can be imported'}")
        print("  tested against the interface alone (tests/integrations/test_*_interface.py)")
        return True
    return all([passes(python, ROOT / "tests" / "integrations" / tests, environment) for tests in engine.tests])


def main() -> int:
    """Test every version, or those of one engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=sorted({engine.name for engine in ENGINES}))
    chosen = parser.parse_args().engine
    BUILD.mkdir(parents=True, exist_ok=True)
    failed = []
    for engine in ENGINES:
        if chosen not in (None, engine.name):
            continue
        requirements = ROOT / "tests" / "integrations" / f"requirements_{engine.environment}.txt"
        python = environment_of(requirements, BUILD / engine.environment)
        failed += [f"{engine.name} {version}" for version in engine.versions if not check(engine, version, python)]
    print(f"FAILED: {', '.join(failed)}" if failed else "PASSED")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
