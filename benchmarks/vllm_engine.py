"""Times one running vLLM on a CPU, kind of request by kind: `running_vllm.py` starts it in vLLM's own environment.

It imports nothing of this project, which is installed there as users install it.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from typing import Any, Final

VOCAB_SIZE: Final = 151936
REQUESTS, TOKENS, WARM_TOKENS, PROMPT = 32, 32, 4, 8
BEST: Final = {"top_k": 50, "top_p": 0.9}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "no filter": {},
    "top-k 50": {"top_k": 50},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 50, top-p 0.9": BEST,
    "the same, seeds": BEST | {"seed": 1},
    "the same, temperature 0.7": BEST | {"temperature": 0.7},
    "min-p 0.05": {"min_p": 0.05},
    "penalties, top-k 50, top-p 0.9": BEST | {"repetition_penalty": 1.1, "presence_penalty": 0.5},
    "biases, top-k 50, top-p 0.9": BEST | {"logit_bias": {3: 1.0, 77: -2.0}},
    "allowed ids, top-k 50, top-p 0.9": BEST | {"allowed_token_ids": list(range(0, VOCAB_SIZE, 64))},
    "5 logprobs, top-k 50, top-p 0.9": BEST | {"logprobs": 5},
    "5 logprobs, greedy": {"temperature": 0.0, "logprobs": 5},
}
FILTERED: Final = tuple(name for name, asked in KINDS.items() if {"top_k", "top_p", "min_p"} & asked.keys())
CONFIG: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 256,
}


def time_kinds(folder: str) -> dict[str, dict[str, float]]:
    """Returns, by kind, the seconds that a step samples for, its share of the step, and the engine's tokens per second.

    All are of the median step.
    """
    from vllm import LLM, SamplingParams
    from vllm.v1.sample.sampler import Sampler

    began: list[float] = []
    spent: list[float] = []
    own = Sampler.forward

    def forward(*arguments: Any, **named: Any) -> Any:
        began.append(time.perf_counter())
        output = own(*arguments, **named)
        spent.append(time.perf_counter() - began[-1])
        return output

    Sampler.forward = forward
    llm = LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=CONFIG["max_position_embeddings"],
        max_num_seqs=REQUESTS,
        distributed_executor_backend="uni",
    )
    prompts: Any = [{"prompt_token_ids": [7 + row] * PROMPT} for row in range(REQUESTS)]
    found = {}
    for kind, asked in KINDS.items():
        for tokens in (WARM_TOKENS, TOKENS):
            params = SamplingParams(**asked, max_tokens=tokens, ignore_eos=True, detokenize=False)
            began.clear()
            spent.clear()
            llm.generate(prompts, params, use_tqdm=False)
        sampling = statistics.median(spent)
        step = statistics.median(later - earlier for earlier, later in itertools.pairwise(began))
        found[kind] = {"sampling": sampling, "share": sampling / step, "tokens a second": REQUESTS / step}
        print(f"{kind}: {found[kind]}", file=sys.stderr)
    return found


if __name__ == "__main__":
    print(json.dumps(time_kinds(sys.argv[1])))
