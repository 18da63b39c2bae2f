"""What a beam search itself costs beside its model: everything that is not the decoder's own computation.

    python -m benchmarks.beam_search             # 64 prompts, 4 beams, 32000 tokens; prints times and the promise

The model is a translation decoder of the sizes of "Transformer base" and "Transformer big" (Vaswani et al., 2017), with
random weights: 6 layers of 512 (or 1024), self-attention over a cache, cross-attention to 32 places of memory projected
once for each prompt, and the projection to the vocabulary. It is what the search runs on, step by step, and every time
comes from that one run: the decoder's passes, the moves of its cache when beams change, and the rest, which is the
search. Rates are those of a step in the middle of its quartiles.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ascend_sample._options import whole_number
from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.model import StepOutput
from ascend_sample.decoding.models.step_major_cache import move_places
from benchmarks import environment
from benchmarks.command import parser_of
from benchmarks.native import ROOT
from benchmarks.quiet import MOST_DISTURBED, Watch

OUTPUT = ROOT / "build" / "performance" / "beam_search.json"
LAYERS: Final = 6
MEMORY: Final = 32
WARM_TOKENS: Final = 3
LIMIT: Final = 0.10
"""Of a step: what the search may take."""


class Size(NamedTuple):
    """Of a decoder: the width of its layers, and their heads; a feed-forward layer is 4 times as wide."""

    hidden: int
    heads: int


SIZES: Final = {"base": Size(512, 8), "big": Size(1024, 16)}


class Cache(NamedTuple):
    """Keys and values of the tokens so far, step-major so that a step is appended in one piece.

    Attributes:
        past: float32 [layers * 2, places, rows, hidden].
        origins: int64 [places, rows], equal where keys and values are: beams share most of their past.
        length: how many places are filled.
        memory: float32 [layers * 2, batch, heads, MEMORY, hidden / heads], not repeated for beams.
    """

    past: Tensor
    origins: Tensor
    length: int
    memory: Tensor


class Layer(nn.Module):
    """A pre-LN decoder layer, one token at a time."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden, self.heads = size
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(3))
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.query = nn.Linear(hidden, hidden)
        self.outs = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.feed_forward = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: Tensor, past: Tensor, length: int, memory: Tensor) -> Tensor:
        """X is [rows, hidden], past [2, places, rows, hidden], memory [2, batch, heads, MEMORY, hidden / heads]."""
        query, key, value = self.query_key_value(self.norms[0](x)).chunk(3, dim=1)
        past[0, length], past[1, length] = key, value
        keys, values = (
            part[: length + 1].unflatten(2, (self.heads, -1)).permute(1, 2, 0, 3) for part in (past[0], past[1])
        )
        own = nn.functional.scaled_dot_product_attention(query.unflatten(1, (self.heads, 1, -1)), keys, values)
        x = x + self.outs[0](own.flatten(1))
        # The beams of a prompt are queries of one memory.
        queries = (
            self.query(self.norms[1](x)).view(memory.shape[1], -1, self.heads, x.shape[1] // self.heads).transpose(1, 2)
        )
        of_memory = nn.functional.scaled_dot_product_attention(queries, memory[0], memory[1])
        x = x + self.outs[1](of_memory.transpose(1, 2).reshape(x.shape))
        return x + self.feed_forward(self.norms[2](x))


class Decoder(nn.Module):
    """A `StepModel` of random weights."""

    def __init__(self, size: Size, vocab_size: int, places: int) -> None:
        super().__init__()
        hidden = size.hidden
        self.embedding = nn.Embedding(vocab_size, hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(hidden)
        self.places = places
        # Sharp enough for beams to differ.
        nn.init.normal_(self.embedding.weight, std=0.1)

    @torch.no_grad()
    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, **encoder: Tensor) -> StepOutput:
        """For prompts of one token."""
        rows = len(input_ids)
        past = torch.zeros(2 * LAYERS, self.places, rows, self.embedding.embedding_dim)
        origins = torch.zeros(self.places, rows, dtype=torch.int64)
        return self._step(input_ids, Cache(past, origins, 0, encoder["memory"].transpose(0, 1)))

    @torch.no_grad()
    def decode(self, tokens: Tensor, cache: Cache) -> StepOutput:
        """One token for each row."""
        output = self._step(tokens, cache)
        return output._replace(logits=output.logits[:, None])

    def expand(self, cache: Cache, count: int) -> Cache:
        """Each row count times."""
        past, origins = cache.past.repeat_interleave(count, dim=2), cache.origins.repeat_interleave(count, dim=1)
        return cache._replace(past=past, origins=origins)

    def reorder(self, cache: Cache, index: Tensor) -> Cache:
        """In place, and only where something changes. Beams keep their prompt, and so its memory."""
        wanted = cache.origins[:, index]
        move_places(cache.past, (wanted != cache.origins)[: cache.length], index)
        return cache._replace(origins=wanted)

    def rollback(self, cache: Cache, lengths: Tensor) -> Cache:
        """No beam search asks for it."""
        raise NotImplementedError

    def _step(self, tokens: Tensor, cache: Cache) -> StepOutput:
        x = self.embedding(tokens[:, 0])
        rows = len(tokens)
        cache.origins[cache.length] = torch.arange(rows) + (cache.length + 1) * rows
        for place, layer in enumerate(self.layers):
            part = slice(2 * place, 2 * place + 2)
            x = layer(x, cache.past[part], cache.length, cache.memory[part])
        logits = self.norm(x) @ self.embedding.weight.T
        return StepOutput(logits, cache._replace(length=cache.length + 1))


@dataclass
class Timed:
    """A decoder, and when it worked: (begin, end) of each pass and of each move of its cache."""

    decoder: Decoder
    passes: list[tuple[float, float]] = field(default_factory=list)
    moves: list[tuple[float, float]] = field(default_factory=list)

    def _note(self, times: list[tuple[float, float]], work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        done = work()
        times.append((begin, time.perf_counter()))
        return done

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, **encoder: Tensor) -> StepOutput:
        """The decoder's; not counted."""
        return self.decoder.prefill(input_ids, attention_mask, **encoder)

    def decode(self, tokens: Tensor, cache: Cache) -> StepOutput:
        """The decoder's, timed."""
        output: StepOutput = self._note(self.passes, lambda: self.decoder.decode(tokens, cache))
        return output

    def expand(self, cache: Cache, count: int) -> Cache:
        """The decoder's; not counted."""
        return self.decoder.expand(cache, count)

    def reorder(self, cache: Cache, index: Tensor) -> Cache:
        """The decoder's, timed."""
        moved: Cache = self._note(self.moves, lambda: self.decoder.reorder(cache, index))
        return moved

    def rollback(self, cache: Cache, lengths: Tensor) -> Cache:
        """The decoder's."""
        return self.decoder.rollback(cache, lengths)

    def steps(self) -> list[dict[str, float]]:
        """From the end of one pass to the end of the next, in seconds: search, cache, model and all."""
        found = []
        for before, after, move in zip(self.passes, self.passes[1:], self.moves[1:], strict=False):
            step, model, cache = after[1] - before[1], after[1] - after[0], move[1] - move[0]
            found.append({"step": step, "model": model, "cache": cache, "search": step - model - cache})
        return found


def measure(
    size: str, batch: int, beams: int, vocab_size: int, tokens: int, finished: Literal["pool", "in_beam"]
) -> dict[str, Any]:
    """Search once, after a short search that warms up, and take the medians of the steps."""
    torch.manual_seed(0)
    hidden, heads = SIZES[size]
    decoder = Decoder(SIZES[size], vocab_size, tokens + 1).eval()
    memory = torch.randn(batch, 2 * LAYERS, heads, MEMORY, hidden // heads)
    start = torch.arange(batch)[:, None]

    def search(model: Timed, length: int) -> None:
        beam_search(
            model,
            start,
            encoder={"memory": memory},
            max_new_tokens=length,
            num_beams=beams,
            finished=finished,
            early_stopping="never" if finished == "pool" else False,
            eos_token_id=2,
        )

    search(Timed(decoder), WARM_TOKENS)
    timed, watch = Timed(decoder), Watch()
    search(timed, tokens)
    steps = timed.steps()
    medians = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
    shares = sorted((step["step"] - step["model"]) / step["step"] for step in steps)
    return {
        "size": size,
        "finished": finished,
        "steps": len(steps),
        "medians": medians,
        "search_share": statistics.median(step["search"] / step["step"] for step in steps),
        "share": statistics.median(shares),
        "share_quartiles": [shares[len(shares) // 4], shares[3 * len(shares) // 4]],
        "disturbed": watch.share_of_others(),
    }


def show(found: dict[str, Any]) -> None:
    """Print times and the promise."""
    console = Console(width=160)
    console.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found["options"].items()))
    table = Table(
        "decoder", "finished", "steps", "model", "cache moves", "search", "search / step", "all but the model / step"
    )
    for record in found["records"]:
        times = [f"{record['medians'][name] * 1e3:.1f} ms" for name in ("model", "cache", "search")]
        low, high = record["share_quartiles"]
        shares = [f"{record['search_share']:.1%}", f"{record['share']:.1%} ({low:.1%} to {high:.1%})"]
        table.add_row(record["size"], record["finished"], str(record["steps"]), *times, *shares)
    console.print(table)
    for record in found["records"]:
        console.print(
            f"{record['size']}, {record['finished']}: all but the model {record['share']:.1%} (at most {LIMIT:.0%}): "
            f"{verdict(record)}"
        )


def verdict(record: dict[str, Any]) -> str:
    """Whether the promise was kept, if that can be said."""
    if (record["disturbed"] or 0.0) > MOST_DISTURBED:
        return f"disturbed, others had {record['disturbed']:.0%} of the processors"
    return "pass" if record["share"] <= LIMIT else "FAIL"


def main() -> int:
    """Measure; returns the exit status."""
    parser = parser_of("beam_search", __doc__)
    parser.add_argument("--batch", type=whole_number(1), default=64, help="prompts")
    parser.add_argument("--beams", type=whole_number(1), default=4)
    parser.add_argument("--vocab-size", type=whole_number(1), default=32000)
    parser.add_argument("--tokens", type=whole_number(WARM_TOKENS), default=24, help="that are generated")
    parser.add_argument("--threads", type=whole_number(1), default=torch.get_num_threads(), help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    finished: tuple[Literal["pool"], Literal["in_beam"]] = ("pool", "in_beam")
    records = [
        measure(size, options.batch, options.beams, options.vocab_size, options.tokens, each)
        for size in SIZES
        for each in finished
    ]
    found = {"environment": environment.describe(), "options": vars(options), "records": records}
    environment.keep(OUTPUT, found)
    show(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
