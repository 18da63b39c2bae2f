"""Runs programs with hostcann in CANN's place: `hostcann run COMMAND...`."""

import argparse
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hostcann._activation import HOME_VARIABLE, environment, find_real_cann
from hostcann._elf import exported_symbols
from hostcann._errors import refuse
from hostcann._home import LIBRARIES, PACKAGE_HOME, RUNTIME_LIBRARY, library_paths
from hostcann._lines import startup_code
from hostcann._operators import add_operators
from hostcann._profile import BANDWIDTH_GBS, LAUNCH_US, Profile

_AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_COMMAND_NOT_FOUND = 127  # as shells say it
_COMMAND_NOT_RUN = 126
_KILLED = 128  # and the signal's number
_SAY_WHAT_IS_WRONG = (  # in a process of its own: the runtime reads variables when it is loaded, and stays
    "import ctypes, sys; wrong = ctypes.CDLL(sys.argv[1]).hostcann_settings_error; wrong.restype = ctypes.c_char_p; "
    "sys.exit(wrong().decode() or None)"
)
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hostcann", description=__doc__)
    commands = parser.add_subparsers(dest="action", required=True)
    for name, text in (
        ("run", "run a command in which `import torch` finds an emulated NPU"),
        ("profile", "run a command likewise, and print at its end what it asked of the device, and where"),
        ("env", 'print the shell lines that set the same environment: eval "$(... env)"'),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--soc", help="the SoC's name (default Ascend910B3)")
        command.add_argument("--without", action="append", default=[], metavar="SYMBOL", help="a symbol to leave out")
        command.add_argument("--memory", help="the device's memory in bytes; K, M or G may follow (default 16G)")
        text = "how many devices there are, one a process (default torchrun's LOCAL_WORLD_SIZE, or 1)"
        command.add_argument("--devices", help=text)
        command.add_argument("--stream-mode", help="normal, lazy, delayed or delayed:MILLISECONDS")
        command.add_argument("--faults", help="site:name:nth[:code],...")
        command.add_argument("--strict", action="store_true", help="exit with status 97 when there were violations")
        if name == "profile":
            command.add_argument("--json", metavar="FILE", help="write what the table shows there")
            for option, default, what in (
                ("--launch-us", LAUNCH_US, "of the model: microseconds a launch"),
                ("--bandwidth-gbs", BANDWIDTH_GBS, "of the model: gigabytes of device memory a second"),
            ):
                command.add_argument(
                    option, default=str(default), metavar="NUMBER", help=f"{what} (default {default:g})"
                )
        else:
            text = "write violations, live objects and activities there at exit; %%p becomes the process's number"
            command.add_argument("--report", metavar="FILE", help=text)
        if name != "env":
            command.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    text = "compile aclnn operators of yours, and install them for every program that runs on hostcann"
    operators = commands.add_parser("add-operators", help=text, description=text)
    operators.add_argument("vendor", help="a name for them")
    operators.add_argument("sources", nargs="+", metavar="SOURCE", help="C++ files, written with hostcann/opapi.h")
    info = commands.add_parser("info", help="print what is installed")
    info.add_argument("--symbols", action="store_true", help="list every exported symbol")
    return parser


def _variables(options: argparse.Namespace) -> dict[str, str]:
    variables = environment(without=options.without)
    for name in ("soc", "memory", "devices", "stream_mode", "faults", "report"):
        value = getattr(options, name, None)
        if value is not None:
            variables[f"HOSTCANN_{name.upper()}"] = value
    if variables.get("HOSTCANN_REPORT"):
        # Where this command was started: the program may have gone to another folder when it ends.
        variables["HOSTCANN_REPORT"] = os.path.abspath(variables["HOSTCANN_REPORT"])
    if options.strict:
        variables["HOSTCANN_STRICT"] = "1"
    _check(os.environ | variables)
    return variables


def _check(variables: dict[str, str]) -> None:
    """Raises if hostcann would refuse to work with these, of which torch_npu only says that there is no device."""
    library = Path(variables[HOME_VARIABLE]) / LIBRARIES / RUNTIME_LIBRARY
    without_report = variables | {"HOSTCANN_REPORT": ""}  # which the library writes when its process ends
    command = [sys.executable, "-IS", "-c", _SAY_WHAT_IS_WRONG, str(library)]
    checked = subprocess.run(command, env=without_report, capture_output=True, text=True)
    if checked.returncode != 0:
        raise ValueError(f"hostcann: {checked.stderr.strip()}")


def _command(options: argparse.Namespace) -> list[str]:
    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        owner = f"hostcann {options.action}"
        refuse(owner, "a command", "follow", "none", f"Example: {options.action} python my_program.py")
    return command


def _environment(options: argparse.Namespace) -> dict[str, str]:
    variables = os.environ | _variables(options)
    variables.pop(_AUTOLOAD_VARIABLE, None)  # `import torch` shall bring the NPU along
    return variables


def _run(options: argparse.Namespace) -> int:
    command = _command(options)
    variables = _environment(options)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, variables)
    except OSError as error:
        return _refuse_command("run", command[0], error)


def _refuse_command(action: str, name: str, error: OSError) -> int:
    """Says why a command cannot be started; returns the status that a shell has for it."""
    if isinstance(error, FileNotFoundError):
        print(f"hostcann {action}: {name} must be a command on PATH, but there is none.", file=sys.stderr)
        return _COMMAND_NOT_FOUND
    print(f"hostcann {action}: {name} must be a command that can be run, got {error.strerror}.", file=sys.stderr)
    return _COMMAND_NOT_RUN


def _profile(options: argparse.Namespace) -> int:
    command = _command(options)
    launch_us = _number(options.launch_us, "--launch-us", LAUNCH_US, "a number of microseconds of at least 0")
    bandwidth_gbs = _number(
        options.bandwidth_gbs, "--bandwidth-gbs", BANDWIDTH_GBS, "a number of gigabytes a second above 0"
    )
    if options.json is not None:
        _check_file("--json", options.json)
    variables = _environment(options)
    sys.stdout.flush()
    # A process that goes on in the background may write its report when the folder is removed.
    with tempfile.TemporaryDirectory(prefix="hostcann-profile-", ignore_cleanup_errors=True) as folder:
        variables["HOSTCANN_REPORT"] = str(Path(folder) / "%p.json")
        variables["HOSTCANN_STARTUP"] = startup_code()
        variables["TASK_QUEUE_ENABLE"] = "0"  # what torch_npu launches on its own thread has no line
        try:
            status = _run_to_its_end(command, variables)
        except OSError as error:
            return _refuse_command("profile", command[0], error)
        reports = _read_reports(Path(folder))
    profile = Profile.of_reports(*reports)
    table = profile.table(launch_us, bandwidth_gbs)
    if not profile.activities:
        table = "The program asked nothing of the device, or ended without saying what (killed, or by os._exit)."
    print(f"\nhostcann profile: {shlex.join(command)}\n\n{table}", file=sys.stderr)
    if options.json is not None:
        try:
            Path(options.json).write_text(json.dumps(profile.as_json(launch_us, bandwidth_gbs), indent=2) + "\n")
        except OSError as error:  # its folder was removed meanwhile, or the disk is full
            print(f"hostcann profile: {options.json} was not written: {error}.", file=sys.stderr)
            return status or 1
    return status


def _check_file(name: str, path: str) -> None:
    """Raises unless a file of that name can be written when the program has ended; leaves it as it is."""
    owner, remedy = "hostcann profile", "Name another, or leave it out."
    if not path or os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or os.curdir):
        refuse(owner, name, "name a file in a folder that exists", repr(path), remedy)
    is_new = not os.path.lexists(path)
    if not is_new and not os.path.isfile(path):
        return  # a pipe, say: opening it would wait for a reader
    try:
        with open(path, "ab"):
            pass
        if is_new:
            os.remove(path)
    except OSError as error:
        refuse(owner, name, f"name a file that can be written ({error.strerror})", repr(path), remedy)


def _number(text: str, name: str, default: float, what: str) -> float:
    """Returns an option's number if the model can be made with it."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (value == 0 and name == "--bandwidth-gbs"):
        refuse("hostcann profile", name, f"be {what}", repr(text), f"Leave it out for {default:g}.")
    return value


def _read_reports(folder: Path) -> list[dict[str, Any]]:
    """Returns what the processes of a program have reported; names the files of those that did not get that far."""
    reports = []
    for path in sorted(folder.iterdir()):
        try:
            if path.suffix != ".json":
                raise ValueError("its process was ended while it wrote, or goes on")
            reports.append(json.loads(os.fsdecode(path.read_bytes())))  # the names of files are in it
        except (OSError, ValueError) as error:
            print(f"hostcann profile: {path.name} is left out, which cannot be read: {error}.", file=sys.stderr)
    return reports


def _run_to_its_end(command: list[str], variables: dict[str, str]) -> int:
    """Runs a program and returns its exit status as a shell has it.

    What asks this process to end asks the program. An interrupt of the terminal's has reached it already.
    """
    program: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def hand_on(number: int, _frame: object) -> None:
        if program is None:
            early.append(number)
        else:
            program.send_signal(number)

    # What is ignored, as by nohup, is to be ignored by the program too, which gets the default for what has a function.
    handled = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, hand_on) for number in handled}
    try:
        program = subprocess.Popen(command, env=variables)
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in early:
            program.send_signal(number)
        status = program.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else _KILLED - status


def _info(options: argparse.Namespace) -> int:
    print(f"home       {PACKAGE_HOME}")
    print(f"real CANN  {find_real_cann() or 'none found'}")
    for library in library_paths(PACKAGE_HOME):
        names = sorted(name for name in exported_symbols(library) if not name.startswith(("_Z", "hostcann_")))
        print(f"{library.relative_to(PACKAGE_HOME)!s:<48} {len(names)} symbols")
        if options.symbols:
            print("".join(f"  {name}\n" for name in names), end="")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs one command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status = _act(options)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on what is printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it once more
        return _KILLED + signal.SIGPIPE
    return status


def _act(options: argparse.Namespace) -> int:
    try:
        if options.action == "info":
            return _info(options)
        if options.action == "add-operators":
            print(add_operators(options.vendor, options.sources))
            return 0
        if options.action in ("run", "profile"):
            return _run(options) if options.action == "run" else _profile(options)
        for name, value in _variables(options).items():
            print(f"export {name}={shlex.quote(value)}")
        print(f"unset {_AUTOLOAD_VARIABLE}")
        return 0
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
