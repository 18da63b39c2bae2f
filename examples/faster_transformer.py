"""The Decoding loop of FasterTransformer v2, step by step: ids and parents of each step, and the tree gathered.

    python examples/faster_transformer.py
    python examples/faster_transformer.py 1999 --beams 32

A small model, trained here, spells numbers in English: a memory of digits, and a pre-norm decoder with step-major keys
and values. The beam search keeps finished hypotheses in the beam. Each step gives each beam a word and says which beam
of the step before it continues; `gather_tree` follows the parents back from the last step. Exit status 1 says that this
gave other sequences than the search itself.
"""

from __future__ import annotations

import argparse
import sys

from number_speller import END, MOST_DIGITS, START, WORDS, SpellerConfig, decode_words, encode_numbers, load_or_train  # isort: skip  imports torch safely

import torch
from torch import Tensor

from ascend_sample._options import whole_number
from ascend_sample.decoding import DecodeOutput, EncoderDecoder, gather_tree
from ascend_sample.decoding.beams.endings import KeptBeams
from ascend_sample.decoding.beams.run import BeamRun, choose
from ascend_sample.decoding.beams.search import search_beams
from ascend_sample.decoding.request import check_request

MOST_STEPS = 16


def decode(model: EncoderDecoder, number: int, beams: int) -> tuple[DecodeOutput, Tensor, Tensor]:
    """All beams' hypotheses, the best first, and the ids and parents of each step, int64 [steps, 1, beams] each."""
    with torch.no_grad():
        memory, lengths = model.encoder(**encode_numbers([number]))
    request = check_request(
        "faster_transformer",
        model.decoder,
        torch.tensor([[START]]),
        MOST_STEPS,
        encoder={"memory": memory, "memory_lengths": lengths},
        eos_token_id=END,
    )
    run = BeamRun(model.decoder, request, beams)
    kept = KeptBeams(run, num_return_sequences=beams, length_penalty=0.0)
    found = search_beams(run, kept, lambda scores, _: choose(scores, *kept.best_of_each_beam(), beams))
    return (found, *run.recorded())


def show_steps(step_ids: Tensor, parent_ids: Tensor, beams: int) -> None:
    """A line for each step: of the first beams, parent and word."""
    print(f"the step's ids, each behind its parent; beams 0 to {beams - 1}")
    for step, (ids, parents) in enumerate(
        zip(step_ids[:, 0].tolist(), parent_ids[:, 0].tolist(), strict=True), start=1
    ):
        cells = (f"{parent}: {WORDS[token]:<10}" for token, parent in zip(ids[:beams], parents[:beams], strict=True))
        print(f"{step:>4}  {'  '.join(cells)}".rstrip())


def main() -> int:
    """Decode, and gather the tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", nargs="?", type=whole_number(0, 10**MOST_DIGITS - 1), default=405)
    parser.add_argument("--beams", type=whole_number(1), default=8)
    parser.add_argument("--steps", type=whole_number(1), default=SpellerConfig().steps, help="of the training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the operators are too small to share
    model = load_or_train(SpellerConfig(steps=arguments.steps))
    found, step_ids, parent_ids = decode(model, arguments.number, arguments.beams)
    show_steps(step_ids, parent_ids, min(arguments.beams, 8))
    gathered = gather_tree(step_ids, parent_ids, torch.tensor([len(step_ids)]), END)[:, 0].T
    print(f"\n{arguments.number}, gathered from the last step")
    for tokens, score in zip(gathered.tolist(), found.sequences_scores.tolist(), strict=True):
        print(f"{score:9.4f}  {decode_words(tokens)}")
    return 0 if torch.equal(gathered, found.sequences) else 1


if __name__ == "__main__":
    sys.exit(main())
