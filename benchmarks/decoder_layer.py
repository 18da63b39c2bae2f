"""`Decoder` beside the same decoder written out: what one projection, torch's attention and room for later steps save.

    python -m benchmarks.decoder_layer           # prints the table
    python -m benchmarks.decoder_layer --docs    # takes it into docs/faster_transformer.md, too

Written out, queries, keys and values are three products, attention is a product, a softmax and a product, a step is
appended with torch.cat, and a reorder copies the whole cache. Both have the same weights, and must give the same
logits. Each decodes the same texts, by turns; a time is the median of all steps.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
from torch import Tensor
from tqdm import tqdm

from ascend_sample._options import whole_number
from ascend_sample.decoding import Decoder, DecoderConfig, DecoderLayer, StepModel, StepOutput
from benchmarks import environment
from benchmarks.command import fill_between, parser_of
from benchmarks.native import ROOT
from benchmarks.quiet import Watch
from benchmarks.report import format_ratio, format_seconds

DOCUMENT: Final = ROOT / "docs" / "faster_transformer.md"
OUTPUT: Final = ROOT / "build" / "performance" / "decoder_layer.json"
MARKS = "decoder layer"
CONFIG: Final = DecoderConfig(vocab_size=512)  # a small vocabulary: the layers are what is compared
MEMORY: Final = 32
STEPS: Final = 64
TOLERANCE: Final = 1e-3
OURS, PLAIN = "Decoder", "written out"


class Case(NamedTuple):
    """So many prompts, each with so many beams; one beam is decoded without reorders."""

    prompts: int
    beams: int

    def describe(self) -> str:
        """For the table."""
        return f"{self.prompts} x {self.beams}, rows reordered at each step" if self.beams > 1 else f"{self.prompts}"


CASES: Final = (Case(1, 1), Case(32, 1), Case(1, 4), Case(32, 4))


class PlainCache(NamedTuple):
    """Of each layer [2, rows, steps, hidden] of the tokens, and [2, rows, memory, hidden] of the memory."""

    tokens: list[Tensor]
    memory: list[Tensor]


class PlainDecoder:
    """The layers of a `Decoder`, written out; for rows that are all of one length."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.layers = [layer for layer in decoder.layers if isinstance(layer, DecoderLayer)]
        self.projections = [
            [
                (weight.contiguous(), bias.contiguous())
                for weight, bias in zip(
                    layer.query_key_value.weight.chunk(3), layer.query_key_value.bias.chunk(3), strict=True
                )
            ]
            for layer in self.layers
        ]

    @torch.no_grad()
    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, **encoder: Tensor) -> StepOutput:
        """For prompts of one token."""
        memory = [torch.stack(layer.project_memory(encoder["memory"])) for layer in self.layers]
        nothing = [keys[:, :, :0] for keys in memory]
        output = self.decode(input_ids, PlainCache(nothing, memory))
        return output._replace(logits=output.logits[:, 0])

    @torch.no_grad()
    def decode(self, tokens: Tensor, cache: PlainCache) -> StepOutput:
        """One token for each row."""
        decoder, heads = self.decoder, self.decoder.config.heads
        step = cache.tokens[0].shape[2] + 1
        hidden = decoder.embedding(tokens) * decoder.config.hidden_size**0.5
        hidden = hidden + decoder._encode_steps(torch.tensor([[step]]))
        grown = []
        for layer, projections, past, memory in zip(
            self.layers, self.projections, cache.tokens, cache.memory, strict=True
        ):
            normalised = layer.self_norm(hidden)
            query, key, value = (torch.nn.functional.linear(normalised, *each) for each in projections)
            grown.append(torch.cat((past, torch.stack((key, value))), dim=2))
            hidden = hidden + layer.self_output(_attend(heads, query, *grown[-1]))
            query = layer.cross_query(layer.cross_norm(hidden))
            hidden = hidden + layer.cross_output(_attend(heads, query, *memory))
            inner = layer.activation(layer.feed_forward_inner(layer.feed_forward_norm(hidden)))
            hidden = hidden + layer.feed_forward_output(inner)
        return StepOutput(decoder.head(decoder.norm(hidden)), PlainCache(grown, cache.memory))

    def expand(self, cache: PlainCache, count: int) -> PlainCache:
        """Each row count times, the memory too."""
        return PlainCache(*([part.repeat_interleave(count, dim=1) for part in parts] for parts in cache))

    def reorder(self, cache: PlainCache, index: Tensor) -> PlainCache:
        """All that is cached; beams keep their prompt, and so its memory."""
        return cache._replace(tokens=[part[:, index] for part in cache.tokens])

    def rollback(self, cache: PlainCache, lengths: Tensor) -> PlainCache:
        """Nothing here asks for it."""
        raise NotImplementedError


def _attend(heads: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    query, keys, values = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (query, keys, values))
    weights = (query @ keys.mT / query.shape[-1] ** 0.5).softmax(dim=-1)
    return (weights @ values).transpose(1, 2).flatten(2)


def decode_once(model: StepModel, case: Case, seed: int) -> tuple[list[float], Tensor]:
    """The seconds of each step, with its reorder, and the last logits."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.zeros(case.prompts, 1, dtype=torch.int64)
    memory = torch.randn(case.prompts, MEMORY, CONFIG.hidden_size, generator=generator)
    output = model.prefill(start, memory=memory)
    if case.beams > 1:
        output = output._replace(cache=model.expand(output.cache, case.beams))
    rows = case.prompts * case.beams
    first = torch.arange(case.prompts).repeat_interleave(case.beams) * case.beams
    seconds = []
    for _ in range(STEPS):
        tokens = torch.randint(CONFIG.vocab_size, (rows, 1), generator=generator)
        parents = first + torch.randint(case.beams, (rows,), generator=generator)
        begin = time.perf_counter()
        cache = model.reorder(output.cache, parents) if case.beams > 1 else output.cache
        output = model.decode(tokens, cache)
        seconds.append(time.perf_counter() - begin)
    return seconds, output.logits


def measure(repeats: int) -> dict[str, Any]:
    """Each case by turns, after a round that warms up and is compared.

    Raises:
        RuntimeError: the two do not agree.
    """
    torch.manual_seed(0)
    decoder = Decoder(CONFIG).eval()
    models: dict[str, StepModel] = {OURS: decoder, PLAIN: PlainDecoder(decoder)}
    records = []
    for case in tqdm(CASES, desc="cases of the decoder", unit="case"):
        logits = [decode_once(model, case, seed=0)[1] for model in models.values()]
        difference = float((logits[0] - logits[1]).abs().max())
        if difference > TOLERANCE:
            raise RuntimeError(
                f"decoder_layer: logits must agree within {TOLERANCE}, got {difference}. Do not measure."
            )
        watch = Watch()
        seconds: dict[str, list[float]] = {name: [] for name in models}
        for seed in range(repeats):
            for name, model in models.items():
                seconds[name] += decode_once(model, case, seed)[0]
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        disturbed = watch.share_of_others()
        records.append({"case": case._asdict(), "medians": medians, "disturbed": disturbed})
    options = {"repeats": repeats, "threads": torch.get_num_threads()}
    return {"options": options, "records": records}


def tables(found: dict[str, Any]) -> list[str]:
    """The run in Markdown."""
    threads, repeats = found["options"]["threads"], found["options"]["repeats"]
    lines = [
        f"`python -m benchmarks.decoder_layer` on {found['environment']['processor']}, {threads} threads: "
        f"{CONFIG.layers} layers of {CONFIG.hidden_size}, {CONFIG.heads} heads, {STEPS} steps, a memory of {MEMORY}; "
        f"medians of the steps of {repeats} texts, both by turns.",
        "",
        "| rows | `Decoder` | written out | written out / `Decoder` | processors' time that others had |",
        "|---|---|---|---|---|",
    ]
    for record in found["records"]:
        ours, plain = record["medians"][OURS], record["medians"][PLAIN]
        disturbed = "unknown" if record["disturbed"] is None else f"{record['disturbed']:.0%}"
        lines.append(
            f"| {Case(**record['case']).describe()} | {format_seconds(ours)} | {format_seconds(plain)} "
            f"| {format_ratio(plain / ours)}x | {disturbed} |"
        )
    return lines


def publish(found: dict[str, Any], document: Path = DOCUMENT) -> None:
    """Write the table between its marks."""
    fill_between(document, MARKS, "\n".join(tables(found)))


def main() -> int:
    """Measure; returns the exit status."""
    parser = parser_of("decoder_layer", __doc__)
    parser.add_argument("--repeats", type=whole_number(1), default=9, help="texts of each case")
    parser.add_argument("--threads", type=whole_number(1), default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--docs", action="store_true", help="take the figures into docs/faster_transformer.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = {"environment": environment.describe(), **measure(options.repeats)}
    environment.keep(OUTPUT, found)
    print("\n".join(tables(found)))
    if options.docs:
        publish(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
