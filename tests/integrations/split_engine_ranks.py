"""One rank of a group of gloo: an engine that draws from parts of logits, beside one that gathers them.

python -m torch.distributed.run --standalone --nproc_per_node=2 tests/integrations/split_engine_ranks.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

import ascend_sample  # noqa: F401, E402  imports torch in a way that needs no CANN

import torch  # isort: skip  # noqa: E402
import torch.distributed as dist  # noqa: E402

from ascend_sample.sampling.vocabulary_parallel import ProcessGroupExchange  # noqa: E402
from tests.integrations import split_engine_checks, vllm_split_engine  # noqa: E402
from tests.integrations.vllm_split_engine import Ranks, Request, here  # noqa: E402


def main() -> None:
    """Runs the rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    vllm_split_engine.install_modules(sys.modules)
    here.ranks = Ranks(ProcessGroupExchange(None))
    split_engine_checks.check_changes()
    split_engine_checks.check_unseeded()
    sent = split_engine_checks.compare(
        lambda: [Request(top_k=50, seed=row) for row in range(8)], vocab_size=32000, padded=32000, dtype=torch.bfloat16
    )
    if dist.get_rank() == 0:
        print(f"{sent / 8:.0f} bytes a row and step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
