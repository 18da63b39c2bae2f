"""What the adapter relies on in vLLM's source, where that cannot be run: this looks at its text."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ascend_sample.integrations._vllm_metadata import IDLE


class Source:
    """A module of vLLM."""

    def __init__(self, root: Path, name: str) -> None:
        self.text = (root / name).read_text(encoding="utf-8")
        self._classes = {node.name: node for node in ast.parse(self.text).body if isinstance(node, ast.ClassDef)}

    def method(self, class_name: str, name: str) -> tuple[list[str], str]:
        """The names of a method's arguments, and its text."""
        methods = (node for node in self._classes[class_name].body if isinstance(node, ast.FunctionDef))
        node = next(node for node in methods if node.name == name)
        return [argument.arg for argument in node.args.args], ast.unparse(node)

    def fields(self, class_name: str) -> set[str]:
        """The names that a class declares."""
        declared = (node.target for node in self._classes[class_name].body if isinstance(node, ast.AnnAssign))
        return {target.id for target in declared if isinstance(target, ast.Name)}


def check_shards(root: Path) -> None:
    """Raises unless the package in a folder is as the adapter needs it."""
    processor = Source(root, "model_executor/layers/logits_processor.py")
    assert processor.method("LogitsProcessor", "_gather_logits")[0] == ["self", "logits"]
    arguments, body = processor.method("LogitsProcessor", "forward")
    assert arguments[:3] == ["self", "lm_head", "hidden_states"]
    assert "self._get_logits(" in body
    body = processor.method("LogitsProcessor", "_get_logits")[1]
    assert body.count("self._gather_logits(logits)") == 1
    assert body.index("self._gather_logits(logits)") < body.index("logits[..., :self.org_vocab_size]")
    body = processor.method("LogitsProcessor", "__init__")[1]
    for name in ("org_vocab_size", "use_all_gather"):
        assert f"self.{name} = " in body
    embedding = Source(root, "model_executor/layers/vocab_parallel_embedding.py")
    assert "self.num_added_embeddings = " in embedding.method("VocabParallelEmbedding", "__init__")[1]

    runner = Source(root, "v1/worker/gpu_model_runner.py")
    assert "self.speculative_config = " in runner.method("GPUModelRunner", "__init__")[1]
    assert (
        "logits = self.model.compute_logits(sample_hidden_states)"
        in runner.method("GPUModelRunner", "execute_model")[1]
    )
    body = runner.method("GPUModelRunner", "sample_tokens")[1]
    assert "apply_grammar_bitmask(scheduler_output, grammar_output, self.input_batch, logits)" in body
    body = runner.method("GPUModelRunner", "_sample")[1]
    assert "self.sampler(logits=logits, sampling_metadata=sampling_metadata)" in body
    assert re.search(r"^from vllm\.\S+ import apply_grammar_bitmask$", runner.text, re.MULTILINE)

    sampler = Source(root, "v1/sample/sampler.py")
    asked = ["self", "logits", "sampling_metadata", "predict_bonus_token", "logprobs_mode_override"]
    assert sampler.method("Sampler", "forward")[0] == asked
    assert sampler.method("Sampler", "apply_temperature")[0] == ["logits", "temp", "all_random"]
    metadata = Source(root, "v1/sample/metadata.py").fields("SamplingMetadata")
    # All that a step may ask for: a new field would be something that `is_unedited` does not know.
    newer = {"logprob_token_ids", "thinking_budget_state_holder"}
    assert metadata | newer == {
        *("temperature", "all_greedy", "all_random", "top_p", "top_k", "generators", "max_num_logprobs"),
        *("no_penalties", "prompt_token_ids", "frequency_penalties", "presence_penalties", "repetition_penalties"),
        *("output_token_ids", "allowed_token_ids_mask", "bad_words_token_ids", "logitsprocs", "spec_token_ids"),
        *newer,
    }
    processors = Source(root, "v1/sample/logits_processor/builtin.py")
    for name, attribute in IDLE.items():
        assert f"self.{attribute}: " in processors.method(name, "__init__")[1]
        assert re.search(rf"if (not )?self\.{attribute}:", processors.method(name, "apply")[1])
    group = Source(root, "distributed/parallel_state.py")
    assert {"rank_in_group", "world_size", "cpu_group", "device_group"} <= group.fields("GroupCoordinator")


def check_steps(root: Path) -> None:
    """Raises unless a step of V1's sampler is what `vllm_cpu` takes it for: that tells when logits are changed."""
    sampler = Source(root, "v1/sample/sampler.py")
    calls = {
        "forward": {"compute_logprobs", "apply_logits_processors", "sample", "gather_logprobs"}
        | {"gather_specific_token_logprobs"},
        "sample": {"greedy_sample", "compute_logprobs", "apply_temperature", "topk_topp_sampler"},
        "apply_logits_processors": {"_combine_outputs_with_spec_tokens", "apply_penalties"},
    }
    changes = {
        "forward": {"logits.to", "self.apply_logits_processors"},
        "sample": {"self.apply_temperature", "processor.apply"},
        "apply_logits_processors": {"processor.apply", "self.apply_penalties", "holder.apply_to_logits"},
    }
    for name, called in calls.items():
        body = sampler.method("Sampler", name)[1]
        assert set(re.findall(r"self\.(\w+)\(", body)) <= called, name
        assert set(re.findall(r"\blogits = ([\w.]+)\(", body)) <= changes[name], name
    # Nothing else draws: what asks the first of these is told that it may not call the second.
    plain = set(re.findall(r"(?<![\w.])(\w+)\(", sampler.method("Sampler", "forward")[1])) - {"forward"}
    assert plain <= {"LogprobsTensors", "SamplerOutput", "mixed_sample_eligible", "_aiter_raw_fused_sample"}
    assert sampler.method("Sampler", "sample")[0] == ["self", "logits", "sampling_metadata", "logprobs_mode_override"]
    body = Source(root, "v1/worker/gpu_model_runner.py").method("GPUModelRunner", "_get_prompt_logprobs_dict")[1]
    between = body[body.index("self.sampler.compute_logprobs(logits)") : body.index("self.sampler.gather_logprobs(")]
    assert "logits." not in between


def check_ascend(root: Path) -> None:
    """Raises unless vllm_ascend's package in a folder is as the adapter needs it where its parts cannot be imported."""
    runner = Source(root, "worker/model_runner_v1.py")
    assert (
        "logits = self.model.compute_logits(sample_hidden_states)"
        in runner.method("NPUModelRunner", "execute_model")[1]
    )
    body = runner.method("NPUModelRunner", "sample_tokens")[1]
    assert "apply_grammar_bitmask(scheduler_output, grammar_output, self.input_batch, logits)" in body
    body = runner.method("NPUModelRunner", "_sample")[1]
    assert "self.sampler(logits=logits, sampling_metadata=sampling_metadata)" in body
    call = r"self\.rejection_sampler\(spec_decode_metadata, (None|draft_probs), logits, sampling_metadata\)"
    assert re.search(call, body)  # 0.26 has probabilities where layers are on several ranks
    for line in (r"import apply_grammar_bitmask", r"import AscendSampler"):
        assert re.search(rf"^from \S+ {line}$", runner.text, re.MULTILINE), line
    processor = Source(root, "ops/vocab_parallel_embedding.py")
    body = processor.method("AscendLogitsProcessor", "_get_logits_normal")[1]
    assert re.search(r"self\._gather_logits\(\w+\).*logits\[\.\.\., :self\.org_vocab_size\]", body, re.DOTALL)
    assert "def forward" not in processor.text.partition("class AscendLogitsProcessor")[2]
