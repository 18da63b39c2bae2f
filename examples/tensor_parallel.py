"""The demo's language model with its output layer split over processes: the texts of one process, and few bytes a step.

    python examples/tensor_parallel.py

Each of 4 processes has a quarter of the output layer's rows, so a quarter of the logits. Nobody gathers them: the
processes tell each other their candidates, and all draw the same tokens.
"""

from __future__ import annotations

import tempfile

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams  # isort: skip  torch, safely

import torch
import torch.distributed as dist
from language_model import LanguageModel, encode_prompt, load_or_train
from torch.nn import functional

from ascend_sample.sampling.vocabulary_parallel import ProcessGroupExchange, VocabularyShard

PROMPT = "The function returns"
RANKS, STEPS = 4, 24
REQUESTS = {
    "greedy": SamplingParams(temperature=0),
    "top-k": SamplingParams(top_k=50, temperature=0.8, seed=1),
    "top-p": SamplingParams(top_p=0.9, temperature=0.8, seed=2),
    "min-p, penalty": SamplingParams(min_p=0.05, repetition_penalty=1.2, seed=3),
}


@torch.inference_mode()
def write(model: LanguageModel, prompt: list[int], shard: VocabularyShard | None) -> torch.Tensor:
    """Returns the tokens of all requests, int64 [requests, STEPS]."""
    batch, sampler = SamplingBatch(model.config.vocab_size), Sampler(shard=shard)
    batch.extend(list(REQUESTS.values()), [prompt] * len(REQUESTS))
    ids = slice(None) if shard is None else slice(shard.ids.start, shard.ids.stop)
    output_layer = model.embedding.weight[ids]
    new, cache, tokens = torch.tensor([prompt] * len(batch)), None, []
    for _ in range(STEPS):
        hidden, cache = model.read(new, cache)
        logits = functional.linear(hidden[:, -1], output_layer)
        tokens.append(sampler(logits, batch).token_ids)
        new = tokens[-1].unsqueeze(1)
    return torch.stack(tokens, 1)


def run_rank(rank: int, meeting_place: str) -> None:
    """Writes with all processes together, and alone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=RANKS)
    model, tokenizer = load_or_train(progress=False)
    vocab_size, width = model.config.vocab_size, model.config.vocab_size // RANKS
    exchange = ProcessGroupExchange(None)
    prompt = encode_prompt(tokenizer, PROMPT)
    together = write(model, prompt, VocabularyShard(rank * width, width, vocab_size, exchange))
    alone = write(model, prompt, None)
    if rank == 0:
        for name, text in zip(REQUESTS, together.tolist(), strict=True):
            print(f"{name:>14}: {PROMPT}{tokenizer.decode(text)!r}")
        sent, gathered = exchange.bytes_sent / STEPS, len(REQUESTS) * width * 4
        print(f"{RANKS} processes, {exchange.collectives / STEPS:.1f} collectives a step; each sends {sent:.0f} bytes;")
        print(f"its part of the logits has {gathered} bytes. The texts of one process: {torch.equal(together, alone)}")
    assert torch.equal(together, alone), "processes together must write the texts of one"
    dist.destroy_process_group()


def main() -> None:
    """Starts the processes."""
    load_or_train()  # they find what it has kept
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, (f"{folder}/ranks",), nprocs=RANKS)


if __name__ == "__main__":
    main()
