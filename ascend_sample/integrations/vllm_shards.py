"""vLLM's V1 runner, and vllm_ascend's, under tensor parallelism: logits are not gathered where all ranks can draw.

With the switch the engine's logits come as `LateGather`: the part of a rank, which becomes whole as soon as anything
but the sampler looks at it. The sampler draws from the parts where a step has nothing but temperatures, top-k, top-p
and seeds; in every other step it gathers first, and all is as without the switch.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample.integrations import vllm_cpu, vllm_served
from ascend_sample.integrations._ascend_config import ascend_config
from ascend_sample.integrations._broken_logits import say_seen
from ascend_sample.integrations._engine_rows import EngineRows
from ascend_sample.integrations._host_values import facts_of
from ascend_sample.integrations._late_tensors import LateGather, source_of, whole_of
from ascend_sample.integrations._replacing import replacing
from ascend_sample.integrations._switches import is_on
from ascend_sample.integrations._vllm_metadata import is_idle, is_unedited, names_ids
from ascend_sample.sampling import Sampler
from ascend_sample.sampling.rows.parameters import Facts, RowStatus
from ascend_sample.sampling.vocabulary_parallel import VocabularyShard

SWITCH: Final = "ASCEND_SAMPLE_VLLM_SHARDS"
LOGITS_PROCESSOR: Final = "vllm.model_executor.layers.logits_processor"
RUNNERS: Final = {
    "vllm.v1.worker.gpu_model_runner": "GPUModelRunner",
    "vllm_ascend.worker.model_runner_v1": "NPUModelRunner",
}
"""V1's, which the CPU's derives from, and the one of vllm_ascend with a step of its own."""
FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)

_is_step: Final[ContextVar[bool]] = ContextVar("is_step", default=False)
_call: Final[ContextVar[_Call | None]] = ContextVar("call", default=None)


class _Call:
    """A call of vLLM's `LogitsProcessor`.

    Attributes:
        is_split: its logits were to be gathered, and are not.
    """

    is_split = False


def is_switched_on() -> bool:
    """Tells whether logits are not to be gathered."""
    return is_on(SWITCH, default=False)


def install() -> None:
    """Lets ranks draw from their own parts of the logits; a second call changes nothing.

    What is changed for that is imported by the engine, when its platform is known: an engine that makes a batch has it.
    """
    for module_name, class_name in RUNNERS.items():
        module = sys.modules.get(module_name)
        if module is not None:
            install_runner(module, getattr(module, class_name))
    install_logits_processor(importlib.import_module(LOGITS_PROCESSOR).LogitsProcessor)
    install_sampler(importlib.import_module(vllm_cpu.SAMPLER).Sampler)


def install_runner(module: Any, runner: type[Any]) -> None:
    """Lets the steps of a runner have late logits; a second call changes nothing.

    Args:
        module: the runner's, which calls `apply_grammar_bitmask`.
        runner: the class, whose `execute_model` is replaced.
    """

    @replacing(runner, "execute_model")
    def take_a_step(execute_model: Callable[..., Any], self: Any, *arguments: Any, **named: Any) -> Any:
        if self.speculative_config is not None:  # whoever verifies drafts looks at whole rows
            return execute_model(self, *arguments, **named)
        _take_over(self)
        token = _is_step.set(True)
        try:
            return execute_model(self, *arguments, **named)
        finally:
            _is_step.reset(token)

    @replacing(module, "apply_grammar_bitmask")
    def apply_to_whole(
        apply: Callable[..., None], scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any
    ) -> None:
        apply(scheduler_output, grammar_output, input_batch, whole_of(logits))


def install_logits_processor(logits_processor: type[Any]) -> None:
    """Lets vLLM's logits be late within a step; a second call changes nothing.

    Args:
        logits_processor: the class, whose `forward` and `_gather_logits` are replaced.
    """
    gather = logits_processor._gather_logits

    @replacing(logits_processor, "_gather_logits")
    def gather_later(gather: Callable[..., Any], self: Any, logits: Tensor) -> Any:
        call = _call.get()
        if call is None or not _is_part(self, logits):
            return gather(self, logits)
        call.is_split = True
        return logits

    @replacing(logits_processor, "forward")
    def forward_by_parts(forward: Callable[..., Any], self: Any, lm_head: Any, *arguments: Any, **named: Any) -> Any:
        # Ids that were added for LoRA lie between those of one rank and the next one's.
        if not _is_step.get() or getattr(lm_head, "num_added_embeddings", None) != 0:
            return forward(self, lm_head, *arguments, **named)
        call = _Call()
        token = _call.set(call)
        try:
            logits = forward(self, lm_head, *arguments, **named)
        finally:
            _call.reset(token)
        if not call.is_split:
            return logits
        return LateGather(logits, self.org_vocab_size, lambda part: gather(self, part)[..., : self.org_vocab_size])


def _is_part(logits_processor: Any, logits: Tensor) -> bool:
    """Tells whether all ranks can draw from such logits. Without an all-gather one rank alone samples."""
    vocab_size = logits_processor.org_vocab_size
    return (
        logits_processor.use_all_gather
        and logits.dim() == 2
        and logits.dtype in FLOATS
        and logits.shape[1] <= vocab_size <= MAX_VOCAB_SIZE
        and _tensor_parallel_group().world_size > 1
    )


def install_sampler(sampler: type[Any]) -> None:
    """Lets V1's sampler draw from late logits; a second call changes nothing.

    Args:
        sampler: the class, whose `forward` is replaced; vllm_ascend's derives from it.
    """

    @replacing(sampler, "forward")
    def draw_from_parts(
        forward: Callable[..., Any],
        self: Any,
        logits: Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> Any:
        part = source_of(logits, LateGather)
        if part is not None and not predict_bonus_token and logprobs_mode_override is None:
            token_ids = _drawn(self, part, logits, sampling_metadata)
            if token_ids is not None:
                output = importlib.import_module("vllm.v1.outputs").SamplerOutput
                return output(sampled_token_ids=token_ids.to(torch.int32).unsqueeze(-1), logprobs_tensors=None)
        return forward(self, whole_of(logits), sampling_metadata, predict_bonus_token, logprobs_mode_override)


def _drawn(sampler: Any, part: Tensor, late: Tensor, sampling_metadata: Any) -> Tensor | None:
    """Returns the tokens that all ranks find together, int64 [rows]; None where the step needs whole rows.

    On a CPU the ranks gather the logits of a step in which a greedy row has a NaN, to take vLLM's argmax of that row.
    """
    if not vllm_served.draws_here(sampler.topk_topp_sampler) or not _is_plain(sampling_metadata):
        return None
    facts = _facts(sampling_metadata, len(part))
    if facts is None:
        return None
    if not hasattr(sampler, "shard_steps"):
        sampler.shard_steps = ShardSteps(_tensor_parallel_group)
    logits = part.to(torch.float32)
    if part.is_cpu and not sampling_metadata.all_greedy and vllm_cpu.draws_at_once(sampler, sampling_metadata):
        facts = {**facts, "temperature": vllm_cpu.temperatures(sampling_metadata).numpy().copy()}
    elif not sampling_metadata.all_greedy:
        logits = logits.clone() if logits is part else logits  # which is divided in place
        logits = sampler.apply_temperature(logits, sampling_metadata.temperature, sampling_metadata.all_random)
    steps: ShardSteps = sampler.shard_steps
    token_ids, status = steps.draw(
        sampler.topk_topp_sampler, logits, late.shape[1], sampling_metadata.generators, facts
    )
    if part.is_cpu:
        say_seen(status)
        is_greedy = torch.from_numpy(facts["temperature"] == 0)
        if (is_greedy & (status == RowStatus.NAN_SEEN)).any():  # all ranks have the same statuses
            return torch.where(is_greedy, sampler.greedy_sample(whole_of(late)), token_ids)
    return token_ids


def _is_plain(sampling_metadata: Any) -> bool:
    """Tells whether a step has nothing but temperatures, top-k, top-p and seeds, which all ranks know."""
    return (
        sampling_metadata.max_num_logprobs is None
        and not names_ids(sampling_metadata)
        and is_unedited(sampling_metadata)
        and all(map(is_idle, sampling_metadata.logitsprocs.argmax_invariant))
    )


def _facts(sampling_metadata: Any, rows: int) -> Facts | None:
    """Returns what the host knows of the rows; None where it knows nothing."""
    if sampling_metadata.all_greedy:
        return {"temperature": np.zeros(rows, np.float32)}
    return facts_of(rows, sampling_metadata.temperature, sampling_metadata.top_k, sampling_metadata.top_p)


def _tensor_parallel_group() -> Any:
    return importlib.import_module("vllm.distributed.parallel_state").get_tp_group()


def _take_over(runner: Any) -> None:
    """Switches vllm_ascend's reduced sampling off, whose place this takes: it would take whole logits for parts."""
    config = ascend_config(type(runner))
    if getattr(config, "enable_reduce_sample", False):
        config.enable_reduce_sample = False
        warnings.warn(
            f"ascend_sample: {SWITCH} is set, so each rank's part of the logits is sampled here, and "
            "enable_reduce_sample of vllm_ascend is switched off.",
            stacklevel=3,
        )


class ShardSteps:
    """The steps of one of an engine's samplers that draw from the parts of all ranks.

    Args:
        find_group: returns vLLM's group of the ranks.

    Attributes:
        sampler: what draws; None before the first step.
    """

    def __init__(self, find_group: Callable[[], Any]) -> None:
        self._find_group = find_group
        self.sampler: Sampler | None = None
        self._made_for: tuple[Any, ...] | None = None
        self._rows: EngineRows | None = None

    def draw(self, owner: Any, logits: Tensor, vocab_size: int, generators: Any, facts: Facts) -> tuple[Tensor, Tensor]:
        """Draws one token a row, int64 [rows], and returns the statuses of the rows too, int8 [rows].

        Args:
            owner: the engine's sampler of top-k and top-p, whose `seed_source` and `keep_ties` count.
            logits: float32 [rows, columns of this rank], at the temperature.
            vocab_size: of the vocabulary that the ranks share, without padding.
            generators: of the rows whose requests have a seed.
            facts: the parameters of the rows: a temperature of 0 or 1, top-k and top-p.
        """
        made_for = (logits.shape[1], vocab_size, logits.device, owner.keep_ties)
        if self.sampler is None or made_for != self._made_for:
            group, width = self._find_group(), logits.shape[1]
            ranks = group.cpu_group if logits.is_cpu else group.device_group
            shard = VocabularyShard(group.rank_in_group * width, width, vocab_size, ranks)
            self.sampler, self._made_for, self._rows = Sampler(keep_ties=owner.keep_ties, shard=shard), made_for, None
        seed, position = owner.seed_source.take(len(logits), generators)
        seeds = {row: int(seed[row]) for row in generators}
        if self._rows is None or not self._rows.is_for(facts, seeds):
            self._rows = EngineRows(vocab_size, logits.device, facts, seeds)
        self._rows.go_to(position)
        vllm_served.count(len(logits))
        output = self.sampler(logits, self._rows, advance=False)
        return output.token_ids, output.status
