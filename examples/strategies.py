"""Continues the same prompts with every strategy of ascend_sample.decoding.

    python examples/strategies.py
    python examples/strategies.py --prompts "The iterator" --tokens 32
    python examples/strategies.py --json docs/beam_tree.json

The language model of the demo, which is trained here on the documentation in Python's standard library, is given to
each strategy as a plain torch module (`ModuleModel`). Prompts of different lengths make one batch. Everything runs on
the CPU. The JSON has the beams of one search, step by step; it is what docs/pictures/make.py draws.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ascend_sample.decoding import (  # isort: skip  the first to import torch, safely
    DecodeOutput,
    ModuleModel,
    NGramDrafter,
    StepOutput,
    beam_sample,
    beam_search,
    contrastive_search,
    greedy_search,
    group_beam_search,
    sample,
    sample_and_rank,
    speculative_sample,
)

import torch
from demo import check_length
from flattening import rounded
from language_model import END_OF_TEXT_ID, LanguageModel, decode_texts, encode_prompt, load_or_train
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from ascend_sample._options import file_to_write, whole_number
from ascend_sample.sampling import SamplingParams

PROMPTS = ("Return a list of all the", "If the argument is", "The")
TREE_PROMPT, TREE_STEPS, TREE_BEAMS = "Raised when", 7, 4
PARAMS = SamplingParams(temperature=0.8, top_p=0.95, seed=7)


class RecordingModel(ModuleModel):
    """Remembers what a beam search asks for: which rows it keeps in each step, and the tokens that it appends."""

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, **encoder: Tensor) -> StepOutput:
        """As `ModuleModel.prefill`, with an empty memory."""
        self.parents: list[list[int]] = []
        self.tokens: list[list[int]] = []
        return super().prefill(input_ids, attention_mask, **encoder)

    def reorder(self, cache: Any, index: Tensor) -> Any:
        """As `ModuleModel.reorder`."""
        self._index = index.tolist()
        return super().reorder(cache, index)

    def decode(self, tokens: Tensor, cache: Any) -> StepOutput:
        """As `ModuleModel.decode`."""
        self.parents.append(self._index)
        self.tokens.append(tokens.flatten().tolist())
        return super().decode(tokens, cache)


def pad_left(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Prompts as int64 [batch, longest], and where they have tokens."""
    longest = max(map(len, prompts))
    padded = [[END_OF_TEXT_ID] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[False] * (longest - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return torch.tensor(padded), torch.tensor(mask)


def decode_with_each(model: LanguageModel, prompts: list[list[int]], tokens: int) -> dict[str, DecodeOutput]:
    """What each strategy makes of the prompts."""
    plain = ModuleModel(lambda input_ids: model(input_ids)[0])

    def with_hidden_states(input_ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = model.read(input_ids)
        return functional.linear(hidden, model.embedding.weight), hidden

    input_ids, mask = pad_left(prompts)
    common: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": tokens, "eos_token_id": END_OF_TEXT_ID}
    return {
        "greedy_search": greedy_search(plain, input_ids, **common),
        "sample": sample(plain, input_ids, PARAMS, **common),
        "sample_and_rank": sample_and_rank(plain, input_ids, PARAMS, num_samples=8, **common),
        "beam_search": beam_search(plain, input_ids, num_beams=4, **common),
        "beam_sample": beam_sample(plain, input_ids, SamplingParams(seed=7), num_beams=4, **common),
        "group_beam_search": group_beam_search(
            plain, input_ids, num_beams=4, num_beam_groups=2, diversity_penalty=0.5, **common
        ),
        "contrastive_search": contrastive_search(ModuleModel(with_hidden_states), input_ids, **common),
        "speculative_sample": speculative_sample(
            plain, input_ids, drafter=NGramDrafter(), params=SamplingParams(temperature=0), **common
        ),
    }


def search_tree(model: LanguageModel, tokenizer: Tokenizer) -> dict[str, Any]:
    """The beams of one search: for each step the tokens, the beams that they continue, and their scores."""
    recording = RecordingModel(lambda input_ids: model(input_ids)[0])
    found = beam_search(
        recording,
        torch.tensor([encode_prompt(tokenizer, TREE_PROMPT)]),
        max_new_tokens=TREE_STEPS,
        num_beams=TREE_BEAMS,
        num_return_sequences=TREE_BEAMS,
        length_penalty=0.0,
        return_scores=True,
    )
    assert found.scores is not None
    assert found.beam_indices is not None

    def shown(token: int) -> str:
        return tokenizer.decode([token]).strip() or "↵"

    steps = []
    totals = [0.0] * TREE_BEAMS
    for parents, tokens, scores in zip(recording.parents, recording.tokens, found.scores, strict=False):
        totals = [totals[parent] + scores[parent, token].item() for parent, token in zip(parents, tokens, strict=True)]
        steps.append({"tokens": [shown(token) for token in tokens], "parents": parents, "scores": totals})
    ends = {
        "tokens": [shown(row[-1]) for row in found.to_lists()],
        "parents": found.beam_indices[:, -1].tolist(),
        "scores": found.sequences_scores.tolist(),
    }
    return {"prompt": TREE_PROMPT, "steps": steps, "ends": ends}


def main() -> int:
    """Decodes and prints; returns the exit status."""
    parser = argparse.ArgumentParser(description="Continue prompts with every decoding strategy.")
    parser.add_argument("--prompts", nargs="+", default=PROMPTS, metavar="TEXT")
    parser.add_argument("--tokens", type=whole_number(1), default=24, help="that each strategy appends at most")
    parser.add_argument("--json", type=file_to_write, help="write the beams of one search to this file")
    arguments = parser.parse_args()
    model, tokenizer = load_or_train()
    with torch.inference_mode():
        prompts = [encode_prompt(tokenizer, text) for text in arguments.prompts]
        check_length(model, max(map(len, prompts)) + arguments.tokens)
        found = decode_with_each(model, prompts, arguments.tokens)
        for place, prompt in enumerate(arguments.prompts):
            print(f"\n{prompt} ...")
            for name, output in found.items():
                text = decode_texts(tokenizer, output.to_lists()[place])
                continued = " | ".join(" ".join(part.split()) for part in text)
                print(f"  {name:<20} {output.sequences_scores[place]:8.2f}  {continued}")
        stats = found["speculative_sample"].stats
        assert stats is not None
        print(
            f"\nspeculative_sample: {int(found['speculative_sample'].lengths.sum())} tokens in {stats.target_passes} "
            f"passes of the model, which looked at {int(stats.drafted.sum())} drafts of the text's own n-grams and "
            f"accepted {int(stats.accepted.sum())}"
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(rounded(search_tree(model, tokenizer)), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
