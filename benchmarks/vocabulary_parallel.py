"""A step of ranks that each have a part of the vocabulary, beside gathering all logits and sampling from them.

    python -m benchmarks.vocabulary_parallel

Processes of gloo with one thread each, batch 64, V = 151936, bfloat16: medians of steps that are taken in turns, on the
slowest rank.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from ascend_sample._options import whole_number
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.vocabulary_parallel import ProcessGroupExchange, VocabularyShard
from ascend_sample.sampling.vocabulary_parallel.exchange import gather_into
from benchmarks.command import parser_of

ROWS, VOCAB_SIZE = 64, 151936
CASES = {
    "greedy": {"temperature": 0},
    "k = 50": {"top_k": 50},
    "k = 50, p = 0.9, T = 0.7": {"top_k": 50, "top_p": 0.9, "temperature": 0.7},
    "no filter": {},
    "min-p = 0.05": {"min_p": 0.05},
    "top-p = 0.9": {"top_p": 0.9},
    "k = 50, logprobs = 5": {"top_k": 50, "logprobs": 5},
}


def seconds_of(run: Callable[[], object]) -> float:
    """Returns how long the slowest rank takes."""
    dist.barrier()
    start = time.perf_counter()
    run()
    taken = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


def on_rank(rank: int, size: int, folder: str, repeats: int) -> None:
    """Times the cases on one rank; the first one prints them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=size)
    width = -(-VOCAB_SIZE // size // 64) * 64
    logits = 4 * torch.randn(ROWS, width * size, generator=torch.Generator().manual_seed(0))
    logits = logits.to(torch.bfloat16)[:, :VOCAB_SIZE]
    part = logits.new_zeros(ROWS, width)
    own = logits[:, rank * width : (rank + 1) * width]
    part[:, : own.shape[1]] = own
    for name, params in CASES.items():
        batch = SamplingBatch(VOCAB_SIZE)
        batch.extend([SamplingParams(**params, seed=row) for row in range(ROWS)])
        exchange = ProcessGroupExchange(None)
        split = Sampler(shard=VocabularyShard(rank * width, width, VOCAB_SIZE, exchange))
        usual = Sampler()
        gathered = torch.empty(size * ROWS, width, dtype=part.dtype)

        def step(sampler: Sampler = split, batch: SamplingBatch = batch) -> Tensor:
            return sampler(part, batch, advance=False).token_ids

        def gather_and_step(
            sampler: Sampler = usual, batch: SamplingBatch = batch, gathered: Tensor = gathered
        ) -> Tensor:
            gather_into(gathered, part)
            whole = torch.cat(list(gathered.view(size, ROWS, width)), 1)[:, :VOCAB_SIZE]
            return sampler(whole, batch, advance=False).token_ids

        if not torch.equal(step(), gather_and_step()):
            raise SystemExit(f"{name}: the split step draws other tokens")
        exchange.collectives = exchange.bytes_sent = 0
        step()
        said = (exchange.collectives, exchange.bytes_sent / ROWS)
        times = [[seconds_of(run) for run in (step, gather_and_step)] for _ in range(repeats)]
        ours, theirs = (1e3 * statistics.median(each) for each in zip(*times, strict=True))
        if rank == 0:
            print(
                f"{name:26} {ours:7.2f} ms, {said[0]} collectives, {said[1]:8.0f} bytes a row; "
                f"all_gather and step {theirs:7.2f} ms: {theirs / ours:.1f} times faster",
                flush=True,
            )
    dist.destroy_process_group()


def main() -> None:
    """Runs the ranks."""
    parser = parser_of("vocabulary_parallel", __doc__)
    parser.add_argument("--ranks", type=whole_number(1), default=2)
    parser.add_argument("--repeats", type=whole_number(1), default=21)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        mp.spawn(on_rank, (options.ranks, folder, options.repeats), options.ranks)


if __name__ == "__main__":
    main()
