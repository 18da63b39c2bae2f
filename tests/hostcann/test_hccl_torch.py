"""torch.distributed on HCCL: programs of several processes, each with the real torch_npu and an emulated device."""

from __future__ import annotations

from pathlib import Path

import pytest
from activation_programs import needs_hostcann, needs_torch_npu, variables_of_run

from tests.support.user_process import run_python_warm

pytestmark = [needs_hostcann, needs_torch_npu, pytest.mark.long]

HERE = Path(__file__).parent


def run_ranks(ranks: int, program: str, *arguments: str, mode: str = "normal") -> list[str]:
    """Returns what the ranks have printed, sorted; a violation makes a rank fail."""
    torchrun = ("-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone", str(HERE / program))
    variables = variables_of_run() | {"HOSTCANN_STRICT": "1", "HOSTCANN_STREAM_MODE": mode}
    done = run_python_warm(*torchrun, *arguments, **variables)
    assert done.returncode == 0, done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))


@pytest.mark.parametrize(
    ("mode", "ranks", "sizes", "count"),
    [("normal", 3, (1, 3, 257), 324), ("delayed", 2, (3,), 108), ("lazy", 2, (3,), 108)],
)
def test_every_collective_gives_what_gloo_gives(mode: str, ranks: int, sizes: tuple[int, ...], count: int) -> None:
    printed = run_ranks(ranks, "collectives_program.py", *map(str, sizes), mode=mode)
    assert printed == [f"rank {rank}: {count} agree" for rank in range(ranks)]


def test_data_parallel_training_and_a_sharded_checkpoint(tmp_path: Path) -> None:
    printed = run_ranks(2, "training_program.py", str(tmp_path / "checkpoint"))
    assert printed == [f"rank {rank}: trained and loaded" for rank in range(2)]


def test_captured_collectives_are_replayed_and_counted() -> None:
    assert run_ranks(2, "captured_collectives_program.py") == [f"rank {rank}: replayed" for rank in range(2)]
