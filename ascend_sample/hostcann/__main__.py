"""Runs programs with hostcann in CANN's place: `python -m ascend_sample.hostcann run COMMAND...`."""

import argparse
import os
import shlex
import sys

from ascend_sample.hostcann._activation import environment, find_real_cann
from ascend_sample.hostcann._elf import exported_symbols
from ascend_sample.hostcann._home import PACKAGE_HOME, library_paths

_AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_COMMAND_NOT_FOUND = 127  # as shells say it


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ascend_sample.hostcann", description=__doc__)
    commands = parser.add_subparsers(dest="action", required=True)
    for name, text in (
        ("run", "run a command in which `import torch` finds an emulated NPU"),
        ("env", 'print the shell lines that set the same environment: eval "$(... env)"'),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--soc", help="the SoC's name (default Ascend910B3)")
        command.add_argument("--without", action="append", default=[], metavar="SYMBOL", help="a symbol to leave out")
        command.add_argument("--memory", help="the device's memory in bytes; K, M or G may follow (default 16G)")
        command.add_argument("--stream-mode", help="normal, lazy, delayed or delayed:MILLISECONDS")
        command.add_argument("--faults", help="site:name:nth[:code],...")
        command.add_argument(
            "--report", metavar="FILE", help="write violations, live objects and counters there at exit"
        )
        command.add_argument("--strict", action="store_true", help="exit with status 97 when there were violations")
        if name == "run":
            command.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    info = commands.add_parser("info", help="print what is installed")
    info.add_argument("--symbols", action="store_true", help="list every exported symbol")
    return parser


def _variables(options: argparse.Namespace) -> dict[str, str]:
    variables = environment(without=options.without)
    for name in ("soc", "memory", "stream_mode", "faults", "report"):
        value = getattr(options, name)
        if value is not None:
            variables[f"HOSTCANN_{name.upper()}"] = value
    if options.strict:
        variables["HOSTCANN_STRICT"] = "1"
    return variables


def _run(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        print("hostcann run: a command must follow, got none. Example: run python my_program.py", file=sys.stderr)
        return 2
    os.environ.update(_variables(options))
    os.environ.pop(_AUTOLOAD_VARIABLE, None)  # `import torch` shall bring the NPU along
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        print(f"hostcann run: {command[0]} must be a command on PATH, but there is none.", file=sys.stderr)
        return _COMMAND_NOT_FOUND


def _info(options: argparse.Namespace) -> int:
    print(f"home       {PACKAGE_HOME}")
    print(f"real CANN  {find_real_cann() or 'none found'}")
    for library in library_paths(PACKAGE_HOME):
        names = sorted(name for name in exported_symbols(library) if not name.startswith(("_Z", "hostcann_")))
        print(f"{library.name:<24} {len(names)} symbols")
        if options.symbols:
            print("".join(f"  {name}\n" for name in names), end="")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs one command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        if options.action == "info":
            return _info(options)
        if options.action == "run":
            return _run(options)
        for name, value in _variables(options).items():
            print(f"export {name}={shlex.quote(value)}")
        print(f"unset {_AUTOLOAD_VARIABLE}")
        return 0
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
