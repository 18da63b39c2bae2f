"""Speculation that changes nothing but the speed: the same seeds give the same text, whatever is proposed.

    python examples/speculation_changes_nothing.py
    python examples/speculation_changes_nothing.py --prompt "Raised when" --tokens 96 --device cpu

The language model of the demo continues one prompt with several kinds of parameters, each with a seed of its own: token
by token, and by `speculative_sample(rule="match")` with drafts of

- the text itself: what followed its last tokens when they occurred before (prompt lookup);
- a model: the first two of its own four layers;
- nobody: ids at random, half of which no token has.

The texts must be the same each time and on each device; the passes of the model are not the same. Exit status 1 says
that a text differs. On a real NPU, whose matrix products round in other ways, each way is compared with the texts that
the same device decodes token by token.

What is promised is the same token for the same bits of logits. A pass over several tokens may round in other ways than
one over a single token; the model computes in float32 here, so that this does not reach a token.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import NamedTuple

from demo import PROMPTS, check_length, parse_with_devices, prepare, texts_must_agree  # isort: skip  imports torch safely

import torch
from language_model import LanguageModel, decode_texts, encode_prompt, load_or_train
from torch import Tensor
from torch.nn import functional

from ascend_sample.decoding import Drafter, ModelDrafter, ModuleModel, NGramDrafter, sample, speculative_sample
from ascend_sample.decoding.speculation.drafters import Draft, Round
from ascend_sample.parity.environment import is_emulated_npu
from ascend_sample.sampling import SamplingParams

GAMMA = 4
DRAFT_LAYERS = 2
PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "top-k, top-p, temperature": SamplingParams(top_k=40, top_p=0.9, temperature=0.7, seed=1),
    "min-p, penalties": SamplingParams(min_p=0.1, frequency_penalty=0.5, seed=2),
    "no filter": SamplingParams(seed=3),
}


class Nonsense:
    """A drafter of ids at random, of which about half are none of the vocabulary.

    Args:
        vocab_size: of the model.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def start(self, input_ids: Tensor, attention_mask: Tensor, encoder: Mapping[str, Tensor]) -> torch.Generator:
        """See `Drafter.start`."""
        return torch.Generator().manual_seed(0)

    def draft(self, state: torch.Generator, texts: Round) -> tuple[Draft, torch.Generator]:
        """See `Drafter.draft`."""
        shape = (len(texts.wanted), texts.size)
        ids = torch.randint(-self.vocab_size // 2, self.vocab_size * 3 // 2, shape, generator=state)
        return Draft(ids.to(texts.tokens.device), texts.wanted), state


class Decoded(NamedTuple):
    """What became of the prompt in one way."""

    text: list[int]
    passes: int  # of the model, that over the prompt included


def first_layers(model: LanguageModel, layers: int) -> ModuleModel:
    """The model without its other layers: cheaper than the whole, and often of its opinion."""

    def logits_of(input_ids: Tensor) -> Tensor:
        end = input_ids.shape[1]
        hidden, rotary = model.embedding(input_ids), (model.rotary_cosine[:end], model.rotary_sine[:end])
        for block in list(model.blocks)[:layers]:
            hidden, _ = block(hidden, rotary, model.causal_mask[:end, :end], None)
        return functional.linear(model.norm(hidden), model.embedding.weight)

    return ModuleModel(logits_of)


@torch.inference_mode()
def decode_in_all_ways(
    model: LanguageModel, prompt: list[int], params: SamplingParams, tokens: int
) -> dict[str, Decoded]:
    """Continues the prompt token by token, and with each drafter, on the device of the model."""
    target = ModuleModel(lambda input_ids: model(input_ids)[0])
    rows = torch.tensor([prompt], device=model.embedding.weight.device)
    plain = sample(target, rows, params, max_new_tokens=tokens)
    ways = {"token by token": Decoded(plain.to_lists()[0], tokens)}
    drafters: dict[str, Drafter] = {
        "n-grams": NGramDrafter(),
        f"{DRAFT_LAYERS} of {len(model.blocks)} layers": ModelDrafter(first_layers(model, DRAFT_LAYERS)),
        "nonsense": Nonsense(model.config.vocab_size),
    }
    for name, drafter in drafters.items():
        output = speculative_sample(
            target, rows, params, drafter=drafter, gamma=GAMMA, rule="match", max_new_tokens=tokens
        )
        assert output.stats is not None
        ways[name] = Decoded(output.to_lists()[0], output.stats.target_passes + 1)
    return ways


def show(name: str, ways: dict[str, Decoded], expected: list[int]) -> bool:
    """Prints a line of the table; returns whether all texts are the one that is expected."""
    others = [way for way, decoded in ways.items() if decoded.text != expected]
    passes = "".join(f"{decoded.passes:>{len(way) + 3}}" for way, decoded in ways.items())
    print(f"  {name:<26}{passes}   {'DIFFERS: ' + ', '.join(others) if others else 'the same'}", flush=True)
    return not others


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Decode with and without drafts, and compare the texts.")
    parser.add_argument("--prompt", default=PROMPTS[0], help="the beginning of the texts")
    return parse_with_devices(parser, 64, "how many tokens each text gets")


def main() -> int:
    """Decodes in each way on each device; returns the exit status."""
    arguments = parse_arguments()
    devices: list[str] = arguments.device
    prepare(devices)
    model, tokenizer = load_or_train()
    prompt = encode_prompt(tokenizer, arguments.prompt)
    check_length(model, len(prompt) + arguments.tokens)
    expected: dict[str, list[int]] = {}
    agree = True
    for device in devices:
        model = model.to(device=device)
        emulated = ", EMULATED" if is_emulated_npu(device) else ""
        print(f"\n{device}{emulated}: passes of the model for {arguments.tokens} tokens, {GAMMA} drafts a round")
        for number, (name, params) in enumerate(PARAMS.items()):
            ways = decode_in_all_ways(model, prompt, params, arguments.tokens)
            if number == 0:
                print(" " * 28 + "".join(f"   {way}" for way in ways) + "   texts")
            if device == devices[0] or not texts_must_agree(devices[0], device):
                expected[name] = ways["token by token"].text
            agree &= show(name, ways, expected[name])
    print("\nThe texts:")
    for name, text in expected.items():
        shown = " | ".join(" ".join(part.split()) for part in decode_texts(tokenizer, prompt + text))
        print(f"  {name}: {shown}")
    print("\nThe texts are THE SAME, whatever is proposed." if agree else "\nThe texts DIFFER.")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
