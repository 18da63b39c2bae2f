"""torch.distributed on HCCL: programs of several processes, each with the real torch_npu and an emulated device."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostcann_programs import needs_torch_npu, variables_of_run

from tests.support.user_process import run_python_warm

pytestmark = [needs_torch_npu, pytest.mark.long]

PROGRAM = str(Path(__file__).with_name("torch_ranks.py"))


def check_ranks(ranks: int, said: str, *arguments: str, mode: str = "normal") -> None:
    """Each rank says this, and nothing else; a violation makes a rank fail."""
    torchrun = ("-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone", PROGRAM)
    variables = variables_of_run() | {"HOSTCANN_STRICT": "1", "HOSTCANN_STREAM_MODE": mode}
    done = run_python_warm(*torchrun, *arguments, **variables)
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert lines == [f"rank {rank}: {said}" for rank in range(ranks)]


@pytest.mark.parametrize(("mode", "ranks", "sizes"), [("normal", 3, ("1", "257")), ("lazy", 2, ("3",))])
def test_every_collective_gives_what_gloo_gives(mode: str, ranks: int, sizes: tuple[str, ...]) -> None:
    check_ranks(ranks, "all agree", "collectives", *sizes, mode=mode)


def test_captured_collectives_are_replayed_and_counted() -> None:
    check_ranks(2, "replayed", "captured")
