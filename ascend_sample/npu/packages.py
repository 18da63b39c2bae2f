"""Tells which build of an operator is installed, in the words of the files that CANN's packages install beside it.

Of an operator in                         the version and the date are in
- ``$ASCEND_HOME_PATH/lib64/libopapi_nn.so``: ``$ASCEND_HOME_PATH/share/info/ops_nn/version.info``; each package of
  operators has such a library and such a file.
- ``libcust_opapi.so``: ``version.info`` of the custom operator package that it is a part of.
- ``libopapi.so``, of a CANN before 8.5: ``version.info`` of the packages ``opp`` and ``opp_kernel``.

Which SoCs have a kernel is in none of them: a package has a folder for each SoC, and in it a file for each kernel. A
CANN for another SoC exports the operator all the same, and refuses the call.

Source: hicann/ops-nn, ``scripts/package/ops_nn/ops_nn.xml``, ``scripts/generate_version_info.py``,
``scripts/custom/install.sh`` and ``cmake/gen_ops_info.cmake``, v8.5.0 to v9.2.0-beta.1; hicann/runtime,
``docs/zh/api_ref/24_other_APIs.md``, ``aclsysGetVersionStr``.
"""

import os
from pathlib import Path
from typing import Final

from ascend_sample.npu.libraries import CUSTOM_OPERATOR_LIBRARY
from ascend_sample.npu.operators import AclnnOperator

_FILE: Final = "version.info"
_KEYS: Final = ("Version", "version_dir", "timestamp", "custom_opp_compiler_version")
"""What of a file is repeated: the rest says what the package requires."""
_KERNELS: Final = Path("op_impl/ai_core/tbe/kernel/config")


def build_of(operator: AclnnOperator, library: str) -> str:
    """Returns what the installed files say about an operator's build, or which of them say nothing.

    Args:
        operator: any of `ascend_sample.npu.operators.OPERATORS`.
        library: what exports it, as `ascend_sample.npu.libraries.find_operator` has it.
    """
    path, installed = Path(library), _folder("$ASCEND_OPP_PATH")
    kernels = installed / "built-in" / _KERNELS
    if path.name == CUSTOM_OPERATOR_LIBRARY:
        package = path.parents[2]  # of PACKAGE/op_api/lib/libcust_opapi.so
        files, kernels = [package / _FILE], package / _KERNELS
    elif path.is_absolute():
        files = [_information(path.parents[1], path.stem.replace("libopapi", "ops"))]
    else:
        files = [installed / _FILE, installed.parent / "opp_kernel" / _FILE]
    return "; ".join([*map(_version_in, files), _kernels_below(kernels, operator.kernel)])


def build_of_cann() -> str:
    """Returns the same of CANN's runtime, whose version is CANN's own."""
    return _version_in(_information(_folder("$ASCEND_HOME_PATH"), "runtime"))


def _folder(variable: str) -> Path:
    return Path(os.path.expandvars(variable))  # which leaves the name of one that is not set


def _information(home: Path, package: str) -> Path:
    return home / "share" / "info" / package / _FILE


def _version_in(file: Path) -> str:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError as error:  # absent, or for its owner and group alone, as some packages install it
        return f"{file} cannot be read ({error.strerror})"
    said = [line.strip() for line in lines if line.partition("=")[0].strip() in _KEYS]
    return f"{', '.join(said) or 'no version'} in {file}"


def _kernels_below(folder: Path, kernel: str) -> str:
    found = [path for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{kernel}.json")]
    socs = sorted({path.relative_to(folder).parts[0] for path in found})
    return f"kernels for {', '.join(socs)} in {folder}" if socs else f"no {kernel}.json in {folder}"
