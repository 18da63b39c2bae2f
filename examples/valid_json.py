"""A small language model that can only write JSON of a schema: a grammar's bitmask goes into the sampler as it is.

    python examples/valid_json.py
    python examples/valid_json.py --rows 8 --device npu:0

llguidance says in each step which tokens may follow, 32 in a word; xgrammar packs its masks alike. What the model makes
of the names and numbers is its own affair: it learned from the documentation of Python's standard library.

Needs llguidance, and the extra demo: pip install llguidance 'ascend_sample[demo]'
"""

from __future__ import annotations

import argparse
import json

from ascend_sample.sampling import RowStatus, Sampler, SamplingBatch, SamplingParams  # isort: skip  torch, safely

import torch
from demo import prepare
from language_model import END_OF_TEXT_ID, LanguageModel, encode_prompt, load_or_train
from language_model.tokenizer import END_OF_TEXT
from llguidance import LLMatcher, LLTokenizer
from llguidance.torch import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import Tokenizer

from ascend_sample._options import whole_number

SCHEMA = {
    "type": "object",
    "properties": {
        "function": {"type": "string", "pattern": "^[a-z_]{3,12}$"},
        "returns": {"enum": ["int", "str", "list", "None"]},
        "arguments": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "maxItems": 3},
        "since": {"type": "number", "minimum": 2, "maximum": 4},
        "deprecated": {"type": "boolean"},
    },
    "required": ["function", "returns", "arguments", "since", "deprecated"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
PROMPT = "The function is called with these arguments: "
MOST_TOKENS = 200


def make_matchers(tokenizer: Tokenizer, rows: int) -> list[LLMatcher]:
    """Returns what follows each row's text through the grammar of the schema."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ours = LLTokenizer(tokenizer.to_str(), eos_token=end)
    grammar = LLMatcher.grammar_from_json_schema(SCHEMA)
    return [LLMatcher(ours, grammar) for _ in range(rows)]


def allowed_tokens(matchers: list[LLMatcher], vocab_size: int) -> torch.Tensor:
    """Returns the ids that may follow, int32 [matchers, ceil(vocab_size / 32)]."""
    bitmask = allocate_token_bitmask(len(matchers), vocab_size)
    for place, matcher in enumerate(matchers):
        fill_next_token_bitmask(matcher, bitmask, place)
    return bitmask


@torch.inference_mode()
def write_json(model: LanguageModel, tokenizer: Tokenizer, batch: SamplingBatch) -> list[str]:
    """Lets every row of a batch write one object; returns their texts.

    Raises:
        RuntimeError: a grammar has left nothing to draw, which it never does with a model whose logits are finite.
    """
    device, rows = batch.device, len(batch)
    matchers, sampler = make_matchers(tokenizer, rows), Sampler()
    written: list[list[int]] = [[] for _ in range(rows)]
    writing = list(range(rows))
    new, cache = torch.tensor([encode_prompt(tokenizer, PROMPT)] * rows, device=device), None
    while writing:
        logits, cache = model(new, cache)
        bitmask = allowed_tokens([matchers[row] for row in writing], batch.vocab_size)
        output = sampler(logits[:, -1].contiguous(), batch, bitmask=bitmask, bitmask_rows=writing)
        new = output.token_ids.unsqueeze(1)
        statuses, tokens = output.status.tolist(), output.token_ids.tolist()
        for row in writing:
            if statuses[row] != RowStatus.OK:
                raise RuntimeError(f"row {row} has the status {RowStatus(statuses[row]).name}")
            matchers[row].consume_token(tokens[row])
            if tokens[row] != END_OF_TEXT_ID:
                written[row].append(tokens[row])
        is_full = len(max(written, key=len)) >= MOST_TOKENS
        writing = [] if is_full else [row for row in writing if not matchers[row].is_stopped()]
    return [tokenizer.decode(tokens) for tokens in written]


def main() -> None:
    """Writes some objects, and reads them again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=whole_number(1), default=6, help="objects")
    parser.add_argument("--device", default="cpu", help="cpu, or npu:0")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    prepare([options.device])
    model, tokenizer = load_or_train()
    batch = SamplingBatch(tokenizer.get_vocab_size(), options.device)
    seeds = [(options.seed + row) % 2**64 for row in range(options.rows)]
    batch.extend([SamplingParams(temperature=0.9, top_p=0.95, seed=seed) for seed in seeds])
    for text in write_json(model.to(options.device), tokenizer, batch):
        print(json.dumps(json.loads(text)))


if __name__ == "__main__":
    main()
