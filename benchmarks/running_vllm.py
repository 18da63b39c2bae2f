"""What sampling costs in a running vLLM on the CPU, with the plugin and without: its share of the time, and the speed.

    make test-engines                       # makes the environment
    python -m benchmarks.running_vllm       # prints the table; some minutes, on an idle machine

Each row is an engine of its own, with a Llama of random weights and a large vocabulary. All requests of a row come
together, are of one kind, and generate as many tokens. An engine answers once before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

VOCAB_SIZE: Final = 32000
REQUESTS, TOKENS, PROMPT = 16, 64, 8
KINDS: Final[dict[str, dict[str, Any]]] = {
    "temperature": {},
    "top-k 50, top-p 0.9": {"top_k": 50, "top_p": 0.9},
    "top-k 50, top-p 0.9, seeds": {"top_k": 50, "top_p": 0.9, "seed": 1},
}
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
PYTHON: Final = Path(__file__).resolve().parents[1] / "build" / "engines" / "vllm" / "bin" / "python"
VARIABLES: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def time_engine(folder: str) -> dict[str, dict[str, float]]:
    """Returns, by kind of request, the sampler's share of the time and the tokens per second of an engine."""
    from vllm import LLM, SamplingParams
    from vllm.v1.sample.sampler import Sampler

    spent = 0.0
    own = Sampler.forward

    def forward(*arguments: Any, **named: Any) -> Any:
        nonlocal spent
        began = time.perf_counter()
        output = own(*arguments, **named)
        spent += time.perf_counter() - began
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
        params = SamplingParams(**asked, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
        llm.generate(prompts, params, use_tqdm=False)
        spent, began = 0.0, time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        found[kind] = {"share": spent / seconds, "tokens a second": REQUESTS * TOKENS / seconds}
    return found


def run(folder: str, switch: str) -> dict[str, dict[str, float]]:
    """Times an engine in a process of its own, with the plugin's switch set."""
    environment = os.environ | VARIABLES | {"ASCEND_SAMPLE_VLLM": switch}
    finished = subprocess.run(
        [PYTHON, __file__, "--engine", folder], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, dict[str, float]] = json.loads(finished.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", metavar="FOLDER", help="time this process's engine; the program calls itself so")
    folder = parser.parse_args().engine
    if folder is not None:
        print(json.dumps(time_engine(folder)))
        return
    if not PYTHON.exists():
        sys.exit(f"running_vllm: there is no {PYTHON}. Run make test-engines once.")
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "config.json").write_text(json.dumps(CONFIG))
        found = {name: run(made, switch) for name, switch in (("vLLM's own", "0"), ("the plugin's", "1"))}
    print(f"{REQUESTS} requests, {VOCAB_SIZE} ids, float32")
    print("| requests | sampler | share of the time | tokens a second |\n|---|---|---:|---:|")
    for kind in KINDS:
        for name, of_kind in found.items():
            share, speed = of_kind[kind]["share"], of_kind[kind]["tokens a second"]
            print(f"| {kind} | {name} | {share:.0%} | {speed:.0f} |")


if __name__ == "__main__":
    main()
