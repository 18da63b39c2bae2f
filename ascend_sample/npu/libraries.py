"""Finds CANN's functions in the libraries that torch_npu would take them from, in its order.

1. ``libcust_opapi.so`` below each entry of ``ASCEND_CUSTOM_OPP_PATH``: operators that a user built.
2. ``libcust_opapi.so`` of the vendors that ``$ASCEND_OPP_PATH/vendors/config.ini`` lists, in that file's order.
3. ``libopapi_*.so`` below ``$ASCEND_HOME_PATH/lib64``: newer CANNs, one library for each group of operators.
4. ``libopapi.so``, wherever the dynamic loader finds it.
5. ``libaclnn_ops_infer.so`` and its like, found likewise: CANNs that divide ``libopapi.so`` otherwise.

An operator that a vendor replaced is thus the same one here, in the compiled binding and in torch_npu itself.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ascend_sample.npu._abi import ffi
from ascend_sample.npu.operators import AclnnOperator

RUNTIME_LIBRARY: Final = "libascendcl.so"
OPERATOR_LIBRARIES: Final = (
    "libopapi.so",
    *(f"libaclnn_{name}.so" for name in ("ops_infer", "ops_train", "math", "sparse", "fft", "rand")),
)
"""Those that the dynamic loader is to find."""
CUSTOM_OPERATOR_LIBRARY: Final = "libcust_opapi.so"

_loader: Final = ffi.dlopen(None)
_last_error: Final = _loader.dlerror  # looked up before there is one: looking up forgets it


@dataclass(frozen=True)
class Symbol:
    """A function of CANN and the library that exports it."""

    name: str
    library: str

    def bind(self) -> Any:
        """Returns the callable, typed by the declarations of `ascend_sample.npu._abi`."""
        # Never unloaded: CANN's threads outlive the interpreter's modules.
        return getattr(ffi.dlopen(self.library, ffi.RTLD_LAZY | ffi.RTLD_NODELETE), self.name)


class SymbolNotFoundError(NotImplementedError):
    """No library offers the function: another backend must serve. The text is a reason, without a full stop."""


def operator_libraries() -> list[str]:
    """Returns the libraries that may export aclnn functions, in the order in which they are asked.

    Returns:
        Absolute paths of files that exist, and last the plain names of `OPERATOR_LIBRARIES`.
    """
    folders = [*_custom_operator_folders(), *_vendor_operator_folders()]
    custom = [folder / CUSTOM_OPERATOR_LIBRARY for folder in folders]
    found = [str(path) for path in custom if _is_trusted(path)]
    home = os.environ.get("ASCEND_HOME_PATH")
    if home:
        found += sorted(str(path) for path in (Path(home) / "lib64").glob("libopapi_*.so"))
    return [*found, *OPERATOR_LIBRARIES]


def find_operator_symbol(name: str) -> Symbol:
    """Looks an aclnn function (or ``aclCreateTensor`` and its like) up in `operator_libraries`.

    Args:
        name: the C name, e.g. ``aclnnTopKTopPSampleGetWorkspaceSize``.

    Raises:
        SymbolNotFoundError: a NotImplementedError that names the function, each library with what was wrong with it,
            and the remedy.
    """
    return _find(name, operator_libraries())


def find_operator(operator: AclnnOperator) -> tuple[Symbol, Symbol]:
    """Returns the two phases of an operator.

    The error of `find_operator_symbol` then also says which CANN has it.
    """
    try:
        if operator.companion is not None:
            find_operator_symbol(operator.companion)
        return find_operator_symbol(operator.phase_1), find_operator_symbol(operator.phase_2)
    except SymbolNotFoundError as reason:
        raise SymbolNotFoundError(f"{reason}. {operator.found_in}") from None


def find_runtime_symbol(name: str) -> Symbol:
    """Looks a function of the ACL runtime up in ``libascendcl.so``; raises as `find_operator_symbol` does."""
    return _find(name, [RUNTIME_LIBRARY])


def _find(name: str, libraries: list[str]) -> Symbol:
    tried: list[str] = []
    for library in libraries:
        problem = _problem_with(library, name)
        if problem is None:
            return Symbol(name, library)
        tried.append(f"{library} ({problem})")
    raise SymbolNotFoundError(
        f"{name} was not found in any of: {', '.join(tried)}. "
        "Install a CANN toolkit and operator package that have it and source their set_env.sh"
    )


def _problem_with(library: str, name: str) -> str | None:
    # Asked of the loader itself: an attribute of a cffi library works for declared names only.
    handle = _loader.dlopen(os.fsencode(library), ffi.RTLD_LAZY)
    if handle == ffi.NULL:
        return _loader_message()
    return None if _loader.dlsym(handle, name.encode()) != ffi.NULL else "does not export it"


def _loader_message() -> str:
    message = _last_error()
    return "cannot be opened" if message == ffi.NULL else str(ffi.string(message).decode(errors="replace"))


def _custom_operator_folders() -> Iterator[Path]:
    for entry in os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":"):
        if entry:
            yield Path(entry) / "op_api" / "lib"


def _vendor_operator_folders() -> Iterator[Path]:
    packages = os.environ.get("ASCEND_OPP_PATH")
    if not packages:
        return
    vendors = Path(packages) / "vendors"
    configuration = vendors / "config.ini"
    try:
        text = configuration.read_text(errors="replace")
    except OSError:  # there is none, or it is not for this user
        return
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "load_priority":
            yield from (vendors / vendor.strip() / "op_api" / "lib" for vendor in value.split(",") if vendor.strip())
            return


def _is_trusted(path: Path) -> bool:
    # torch_npu's rule: code that somebody else could have put there is not loaded.
    try:
        return path.is_file() and path.stat().st_uid in (0, os.getuid())
    except OSError:  # is_file() raises for a folder that this user may not enter
        return False
