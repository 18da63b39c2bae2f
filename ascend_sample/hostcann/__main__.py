"""Runs programs with hostcann in CANN's place: `python -m ascend_sample.hostcann run COMMAND...`."""

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

from ascend_sample._errors import refuse
from ascend_sample.hostcann._activation import environment, find_real_cann
from ascend_sample.hostcann._elf import exported_symbols
from ascend_sample.hostcann._home import PACKAGE_HOME, library_paths
from ascend_sample.hostcann._lines import startup_code
from ascend_sample.hostcann._profile import BANDWIDTH_GBS, LAUNCH_US, Profile

_AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_COMMAND_NOT_FOUND = 127  # as shells say it
_KILLED = 128  # and the signal's number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ascend_sample.hostcann", description=__doc__)
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
    return variables


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
    os.execvpe(command[0], command, variables)


def _profile(options: argparse.Namespace) -> int:
    command = _command(options)
    launch_us = _number(options.launch_us, "--launch-us", LAUNCH_US, "a number of microseconds of at least 0")
    bandwidth_gbs = _number(
        options.bandwidth_gbs, "--bandwidth-gbs", BANDWIDTH_GBS, "a number of gigabytes a second above 0"
    )
    if options.json is not None and (Path(options.json).is_dir() or not Path(options.json).parent.is_dir()):
        remedy = "Make its folder first, or leave it out."
        refuse("hostcann profile", "--json", "name a file in a folder that exists", repr(options.json), remedy)
    variables = _environment(options)
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="hostcann-profile-") as folder:
        variables["HOSTCANN_REPORT"] = str(Path(folder) / "%p.json")
        variables["HOSTCANN_STARTUP"] = startup_code()
        variables["TASK_QUEUE_ENABLE"] = "0"  # what torch_npu launches on its own thread has no line
        status = _wait(subprocess.Popen(command, env=variables))
        reports = [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]
    profile = Profile.of_reports(*reports)
    table = profile.table(launch_us, bandwidth_gbs)
    if not profile.activities:
        table = "The program asked nothing of the device, or ended without saying what (killed, or by os._exit)."
    print(f"\nhostcann profile: {shlex.join(command)}\n\n{table}", file=sys.stderr)
    if options.json is not None:
        Path(options.json).write_text(json.dumps(profile.as_json(launch_us, bandwidth_gbs), indent=2) + "\n")
    return status


def _number(text: str, name: str, default: float, what: str) -> float:
    """Returns an option's number if the model can be made with it."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (value == 0 and name == "--bandwidth-gbs"):
        refuse("hostcann profile", name, f"be {what}", repr(text), f"Leave it out for {default:g}.")
    return value


def _wait(program: "subprocess.Popen[bytes]") -> int:
    """Waits for the end of a program and returns its exit status as a shell has it; an interrupt is the program's."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = program.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else _KILLED - status


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
        if options.action in ("run", "profile"):
            return _run(options) if options.action == "run" else _profile(options)
        for name, value in _variables(options).items():
            print(f"export {name}={shlex.quote(value)}")
        print(f"unset {_AUTOLOAD_VARIABLE}")
        return 0
    except FileNotFoundError:
        name = _command(options)[0]
        print(f"hostcann {options.action}: {name} must be a command on PATH, but there is none.", file=sys.stderr)
        return _COMMAND_NOT_FOUND
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
