"""Lets vLLM's `LLM` of one process answer requests: a program, since an engine cannot be ended within a process.

    python generating.py JOB RESULT

JOB is a JSON file: options of `LLM`, batches of requests, and whether Triton's kernels are interpreted, as the V2
runner needs it on a CPU. RESULT gets the answers and what was counted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def parameters(asked: dict[str, Any]) -> Any:
    """Returns vLLM's parameters of a request."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    named = {name: value for name, value in asked.items() if name != "prompt"}
    if "structured_outputs" in named:
        named["structured_outputs"] = StructuredOutputsParams(**named["structured_outputs"])
    if "logit_bias" in named:
        named["logit_bias"] = {int(token): bias for token, bias in named["logit_bias"].items()}
    return SamplingParams(**named)


def answered(output: Any) -> dict[str, Any]:
    """Returns what a request got, in the form of the server's answers."""
    choices = [
        {
            "index": choice.index,
            "text": choice.text,
            "token_ids": [*choice.token_ids],
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "logprobs": choice.logprobs and logprobs(choice),
        }
        for choice in output.outputs
    ]
    of_prompt = [place and numbers(place) for place in output.prompt_logprobs or ()]  # None for the first token
    return {"choices": choices, "prompt_token_ids": output.prompt_token_ids, "prompt_logprobs": of_prompt}


def logprobs(choice: Any) -> dict[str, Any]:
    """Returns the logprobs of a choice, in the form of the server's answers."""
    places = [*zip(choice.token_ids, choice.logprobs, strict=True)]
    return {
        "tokens": [token for token, _ in places],
        "token_logprobs": [found[token].logprob for token, found in places],
        "top_logprobs": [numbers(found) for _, found in places],
    }


def numbers(place: dict[int, Any]) -> dict[str, float]:
    """Returns the logprobs of a place, by token."""
    return {str(token): entry.logprob for token, entry in place.items()}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Answers the batches one after another."""
    if job.get("interpreted"):
        from interpreted_triton import interpret_triton

        interpret_triton()
    from vllm import LLM

    options = {
        "model": os.environ["ENGINES_MODEL"],
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_seqs": 16,
        "disable_log_stats": False,
        "distributed_executor_backend": "uni",
        "worker_extension_cls": "counting_v2.Counting" if job.get("interpreted") else "counting.Counting",
    }
    llm = LLM(**options | job.get("options", {}))
    starts = llm.collective_rpc("counted")
    answers = []
    for batch in job["batches"]:
        prompts = [asked["prompt"] for asked in batch]
        answers.append([answered(output) for output in llm.generate(prompts, [*map(parameters, batch)])])
    ends = llm.collective_rpc("counted")
    preemptions = [metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions"]
    counted = [
        {name: {key: end[name][key] - start[name][key] for key in end[name]} for name in end}
        for start, end in zip(starts, ends, strict=True)
    ]
    return {"answers": answers, "counted": counted[0], "of_workers": counted, "preemptions": sum(preemptions)}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
