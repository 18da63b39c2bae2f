"""Speculative sampling beside transformers' assisted generation, where every draft token is accepted.

A part of `python -m benchmarks.speculative`. The target is a Llama of transformers with random weights, of the shape of
`NetworkConfig`. The draft is its first layers; what the layers after them add is zero, so both have the same logits
while the target pays for all of them. Both libraries get the same two modules, the same gamma and the same prompt, and
each is measured beside its own decoding without a draft, greedy and sampled, all in turns.

transformers would end a draft early where the draft is not sure; its threshold for that is set to 0, so that it too
drafts gamma tokens in each round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from rich.console import Console
from torch import Tensor
from tqdm import tqdm

from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.decoding.strategies.greedy import greedy_search
from ascend_sample.decoding.strategies.sampled import sample
from ascend_sample.sampling import SamplingParams
from benchmarks.draft_and_target import NetworkConfig
from benchmarks.gates import AT_LEAST, Gate, Measured, gate_of_worst
from benchmarks.quiet import Watch
from benchmarks.report import format_seconds

GAMMA: Final = 7
PROMPT_TOKENS, NEW_TOKENS = 24, 96
ROUNDS = 7
OURS, THEIRS = "ascend_sample", "transformers"
PLAIN, DRAFTED = "plain", "drafted"
SHARPNESS = 8.0
"""Of the logits: random weights alone would give nearly flat distributions."""

Ways = dict[tuple[str, str], Callable[[], Tensor]]
"""By library, and whether it drafts: what returns the new tokens, int64 [1, NEW_TOKENS]."""


def measure(config: NetworkConfig | None = None) -> dict[str, Any]:
    """Time all ways in turns, greedy and sampled; the record of each mode."""
    target, draft = agreeing_pair(config or NetworkConfig())
    return {
        "parameters": sum(parameter.numel() for parameter in target.parameters()),
        "records": [_measure_mode(mode, target, draft) for mode in ("greedy", "sampled")],
    }


def agreeing_pair(config: NetworkConfig) -> tuple[Any, Any]:
    """Two models of transformers with the same logits, the second one of the first `draft_layers` layers alone."""
    from transformers import LlamaConfig, LlamaForCausalLM, logging

    logging.set_verbosity_error()  # assisted generation warns of what it passes to itself

    def model(layers: int) -> Any:
        shape = LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            intermediate_size=config.feed_forward_width,
            num_hidden_layers=layers,
            num_attention_heads=config.heads,
            max_position_embeddings=config.context_size,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        return LlamaForCausalLM(shape).eval()

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(config.seed)
        target, draft = model(config.layers), model(config.draft_layers)
        target.lm_head.weight.mul_(SHARPNESS)
        for layer in target.model.layers[config.draft_layers :]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        draft.load_state_dict({name: target.state_dict()[name] for name in draft.state_dict()})
    draft.generation_config.update(
        num_assistant_tokens=GAMMA, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
    return target, draft


def ways_of(mode: str, target: Any, draft: Any, prompt: Tensor, seed: int) -> Ways:
    """What is compared."""
    from ascend_sample.decoding.models.transformers_models import CausalModel

    model, drafter = CausalModel(target), CausalModel(draft)
    params = SamplingParams(temperature=0 if mode == "greedy" else 1, seed=seed)
    if mode == "greedy":
        options: dict[str, Any] = {"do_sample": False}
    else:
        options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    options |= {"attention_mask": torch.ones_like(prompt), "max_new_tokens": NEW_TOKENS}

    def generate(**assistant: Any) -> Tensor:
        tokens: Tensor = target.generate(prompt, **options, **assistant)
        return tokens[:, prompt.shape[1] :]

    def plain() -> Tensor:
        if mode == "greedy":
            return greedy_search(model, prompt, max_new_tokens=NEW_TOKENS).sequences
        return sample(model, prompt, params, max_new_tokens=NEW_TOKENS).sequences

    def drafted() -> Tensor:
        output = speculative_sample(model, prompt, params, drafter=drafter, gamma=GAMMA, max_new_tokens=NEW_TOKENS)
        return output.sequences

    return {
        (OURS, PLAIN): plain,
        (OURS, DRAFTED): drafted,
        (THEIRS, PLAIN): generate,
        (THEIRS, DRAFTED): lambda: generate(assistant_model=draft),
    }


def _measure_mode(mode: str, target: Any, draft: Any) -> dict[str, Any]:
    watch = Watch()
    seconds: dict[tuple[str, str], list[float]] = {}
    generator = torch.Generator().manual_seed(0)
    vocab_size = target.config.vocab_size
    for number in tqdm(range(ROUNDS + 1), desc=f"assisted generation, {mode}", unit="round"):
        prompt = torch.randint(vocab_size, (1, PROMPT_TOKENS), generator=generator)
        ways = list(ways_of(mode, target, draft, prompt, number).items())
        first = number % len(ways)
        for way, run in ways[first:] + ways[:first]:
            began = time.perf_counter()
            tokens = run()
            if number:  # the first round warms up
                seconds.setdefault(way, []).append(time.perf_counter() - began)
            if tokens.shape != (1, NEW_TOKENS):
                raise RuntimeError(f"{way} gave {list(tokens.shape)} tokens instead of {NEW_TOKENS}")
    return describe(mode, seconds, watch.share_of_others())


def describe(mode: str, seconds: dict[tuple[str, str], list[float]], disturbed: float | None) -> dict[str, Any]:
    """Medians: seconds a token, the speed of drafting beside none, and of ours beside theirs, round by round."""

    def ratio(slow: tuple[str, str], fast: tuple[str, str]) -> float:
        return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))

    return {
        "mode": mode,
        "disturbed": disturbed,
        "seconds": {
            library: {kind: statistics.median(seconds[library, kind]) / NEW_TOKENS for kind in (PLAIN, DRAFTED)}
            for library in (OURS, THEIRS)
        },
        "speed": {library: ratio((library, PLAIN), (library, DRAFTED)) for library in (OURS, THEIRS)},
        "beside": {kind: ratio((THEIRS, kind), (OURS, kind)) for kind in (PLAIN, DRAFTED)},
    }


def judge(part: dict[str, Any]) -> list[Gate]:
    """What is promised: more speed by drafting, and less time for a token."""
    return [
        _worst(part, "own speed-up / that of transformers' assisted generation", _speed_beside),
        _worst(part, "transformers' assisted generation / speculative_sample", lambda r: float(r["beside"][DRAFTED])),
    ]


def _speed_beside(record: dict[str, Any]) -> float:
    return float(record["speed"][OURS] / record["speed"][THEIRS])


def _worst(part: dict[str, Any], name: str, value: Callable[[dict[str, Any]], float]) -> Gate:
    name = f"{name}, gamma {GAMMA}, batch 1, acceptance of 1"
    measured = [Measured(value(record), record, record["mode"]) for record in part["records"]]
    return gate_of_worst("speculative", name, AT_LEAST, 1.0, measured)


def table(part: dict[str, Any]) -> list[str]:
    """In Markdown."""
    lines = [
        "Beside transformers' assisted generation (`python -m benchmarks.speculative --part assisted`): a Llama of "
        f"{part['parameters'] / 1e6:.0f} M parameters whose upper layers add nothing, so that all drafts are accepted; "
        f"gamma {GAMMA}, batch 1, "
        f"{NEW_TOKENS} tokens, medians of {ROUNDS} rounds.",
        "",
        "| mode | library | a token, plain | with a draft | speed-up | others' share of the processors |",
        "|---|---|---|---|---|---|",
    ]
    for record in part["records"]:
        for library, seconds in record["seconds"].items():
            times = " | ".join(format_seconds(seconds[kind]) for kind in (PLAIN, DRAFTED))
            speed = f"{record['speed'][library]:.2f}x"
            lines.append(f"| {record['mode']} | {library} | {times} | {speed} | {record['disturbed'] or 0:.0%} |")
    return lines


def show(part: dict[str, Any], console: Console) -> None:
    """Print the table."""
    for line in table(part):
        console.print(line)
