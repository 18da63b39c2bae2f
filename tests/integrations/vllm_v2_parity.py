"""The adapter and vLLM's V2 runner, whose kernels need a device: this is about what the adapter calls.

`nox -s integrations` runs this in environments that have vLLM. `vllm_ascend_v2_parity.py` lets such samplers draw.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import vllm
from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.states import SamplingStates
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from ascend_sample.integrations import vllm as adapter

IS_SERVED = "skip_top_k_top_p" in inspect.signature(Sampler.apply_sampling_params).parameters
HAS_SERVED_DRAFTS = hasattr(RejectionSampler, "_verify")


def names(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_what_is_replaced() -> None:
    adapter.register()
    for kind, method, is_served in ((Sampler, "sample", IS_SERVED), (RejectionSampler, "_verify", HAS_SERVED_DRAFTS)):
        replaced = [name for name in ("__init__", "__call__", method) if hasattr(getattr(kind, name, None), "replaced")]
        assert replaced == (["__call__", method] if is_served else ["__init__"])


@pytest.mark.skipif(not IS_SERVED, reason="the plugin leaves this V2 runner alone")
def test_what_the_adapter_calls_is_there() -> None:
    adapter.register()
    sample, apply = names(Sampler.sample.replaced), names(Sampler.apply_sampling_params)
    assert {"logits", "expanded_idx_mapping", "idx_mapping_np", "pos"} < set(sample)
    assert sample[-1] == "return_logprobs"
    assert [*sample[:-1], "skip_top_k_top_p"] == apply
    # The host's values, and lengths that are those of the texts where nothing is drafted.
    assert "self.np = " in inspect.getsource(UvaBackedTensor.__init__)
    for name in ("temperature", "top_k", "top_p", "seeds"):
        assert f"self.{name} = UvaBackedTensor(" in inspect.getsource(SamplingStates.__init__)
    assert {"num_reqs", "seq_lens_cpu_upper_bound", "cu_num_logits_np"} < {
        each.name for each in dataclasses.fields(InputBatch)
    }
    assert "self.num_speculative_tokens = num_speculative_tokens" in inspect.getsource(Sampler.__init__)
    runner = (Path(vllm.__file__).parent / "v1/worker/gpu/model_runner.py").read_text()
    assert re.search(r"\"?num_speculative_tokens\"?[=:] ?self\.(decode_query_len|num_speculative_steps \+ 1),", runner)
    call = inspect.unwrap(Sampler.__call__)
    assert names(call) == ["self", "logits", "input_batch"]
    assert "self.sample(" in inspect.getsource(call)


@pytest.mark.skipif(not HAS_SERVED_DRAFTS, reason="the plugin leaves this rejection sampler alone")
def test_what_the_adapter_calls_of_drafts_is_there() -> None:
    adapter.register()
    verify = RejectionSampler._verify.replaced
    used = {"logits", "draft_logits", "draft_sampled", "pos", "idx_mapping_np", "expanded_idx_mapping"}
    assert used | {"expanded_local_pos"} < set(names(verify))
    known = {*names(verify), "input_ids"} - {"draft_logits", "draft_sampled", "verify_draft_sampled", "cu_num_logits"}
    assert known | {"skip_top_k_top_p"} >= set(names(Sampler.apply_sampling_params))
    assert "skip_top_k_top_p" not in inspect.getsource(verify)
    assert names(inspect.unwrap(RejectionSampler.__call__))[:3] == ["self", "logits", "input_batch"]
    body = inspect.getsource(RejectionSampler._verify_in_chunks)
    assert body.count("self._verify(") == 1
    assert re.search(r"for start, end in (request_chunks|_iter_request_chunks\()", body)
    assert "input_batch.idx_mapping_np[start:end]" in body
    made = inspect.getsource(RejectionSampler.__init__)
    for name in ("synthetic_conditional_rates", "use_block_verification", "num_speculative_steps", "sampler"):
        assert re.search(rf"self\.{name}\b.* = ", made), name
