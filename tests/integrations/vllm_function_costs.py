"""What the functions for vLLM's V2 runner cost on an NPU, in counts, as docs/maintainers.md shows it.

hostcann run python -m tests.integrations.vllm_function_costs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import hostcann
from ascend_sample.integrations import vllm_functions, vllm_rejection
from tests.integrations.vllm_stand_ins import LogprobsTensors

REQUESTS, STEPS, VOCAB_SIZE = 16, 3, 151936
ROWS = REQUESTS * (STEPS + 1)
SLOTS = 32


class Cost(NamedTuple):
    launches: int
    copies: dict[str, int]
    waits: int


def arguments(rows: int = ROWS, vocab_size: int = VOCAB_SIZE) -> dict[str, torch.Tensor]:
    """What a step has, of requests with 3 drafts each, or of so many rows, without meaning."""
    slots = torch.arange(SLOTS, device="npu")
    places = torch.arange(rows, device="npu")
    zeros = torch.zeros(SLOTS, vocab_size, dtype=torch.int32, device="npu")
    return {
        "logits": torch.empty(rows, vocab_size, device="npu"),
        "mapping": (places // (STEPS + 1)).to(torch.int32),
        "local": places % (STEPS + 1),
        "ids": places,
        "slots": slots,
        "numbers": slots.float(),
        "seed": slots,
        "words": zeros[:, : -(-vocab_size // 32)].contiguous(),
        "counts": zeros,
        "ends": slots[: REQUESTS + 1] * (STEPS + 1),
        "draft_logits": torch.empty(SLOTS, STEPS, vocab_size, device="npu"),
        "many": zeros[:, :1024].contiguous(),
    }


def calls(given: dict[str, torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Each function, as the runner calls it."""
    logits, mapping, local, ids, slots, numbers, seed, words, counts, ends, draft_logits, many = given.values()
    rows = (mapping, numbers)
    judged = (ids, ends, ids, slots[:REQUESTS], mapping, local, numbers, seed, STEPS)
    drawn: dict[str, Any] = {"output_processed_logits": draft_logits, "output_processed_logits_col": slots[0]}
    scores = vllm_functions.compute_topk_scores
    judge = vllm_rejection.rejection_sample
    return {
        "apply_temperature": lambda: vllm_functions.apply_temperature(logits, *rows),
        "apply_min_p": lambda: vllm_functions.apply_min_p(logits, *rows),
        "apply_top_k_top_p": lambda: vllm_functions.apply_top_k_top_p(logits, mapping, logits[:, 0]),
        "apply_penalties": lambda: vllm_functions.apply_penalties(
            logits, mapping, ids, local, numbers, numbers, numbers, words, counts
        ),
        "bincount": lambda: vllm_functions.bincount(mapping[:1], many, slots, slots, words, counts, 1024),
        "apply_bad_words": lambda: vllm_functions.apply_bad_words(
            logits, mapping, many, many[:, :129], slots, many, slots, slots, ids, local, 4
        ),
        "apply_grammar_bitmask": lambda: vllm_functions.apply_grammar_bitmask(logits, slots, words),
        "gumbel_sample": lambda: vllm_functions.gumbel_sample(logits, *rows, seed, ids, False),
        "gumbel_sample, of drafts": lambda: vllm_functions.gumbel_sample(logits, *rows, seed, ids, True, **drawn),
        "compute_token_logprobs": lambda: vllm_functions.compute_token_logprobs(logits, ids.unsqueeze(1)),
        "compute_topk_scores": lambda: scores(logits, 5, ids),
        "rejection_sample": lambda: judge(logits, draft_logits, *judged),
        "rejection_sample, certain drafts": lambda: judge(logits, None, *judged),
        "rejection_sample, block": lambda: judge(logits, draft_logits, *judged, use_block_verification=True),
    }


def measured() -> dict[str, Cost]:
    """Counts a call of each that is not the first. Kernels are dropped: counts do not depend on numbers."""
    found = {}
    with hostcann.null_kernels():
        for name, call in calls(arguments()).items():
            call()
            with hostcann.profile() as counted:
                call()
            found[name] = Cost(counted.totals.launches, dict(counted.copies), counted.totals.waits)
    return found


def table(costs: dict[str, Cost]) -> str:
    """The table of docs/maintainers.md."""
    lines = ["| function | launches | copies to the device | waits |", "|---|---|---|---|"]
    lines += [
        f"| `{name.partition(',')[0]}`{''.join(name.partition(',')[1:])} | {cost.launches} |"
        f" {cost.copies.get('h2d', 0)} | {cost.waits} |"
        for name, cost in costs.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    import sys
    import types

    sys.modules["vllm.v1.outputs"] = types.SimpleNamespace(LogprobsTensors=LogprobsTensors)  # type: ignore[assignment]
    print(table(measured()))
