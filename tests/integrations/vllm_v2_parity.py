"""The adapter and vLLM's V2 runner, whose kernels need a device: this is about what the adapter calls.

`nox -s integrations` runs this in environments that have vLLM.
"""

from __future__ import annotations

import inspect
import re

import pytest

from ascend_sample.integrations import vllm_v2
from tests.integrations.vllm_parity import has_v2, plugin

__all__ = ["plugin"]  # the fixture


class TestV2:
    """Its kernels need a device, so this is about what the adapter calls."""

    def test_is_left_alone_where_it_is_another(self, plugin: None) -> None:
        from vllm.v1.worker.gpu.model_states.interface import ModelState
        from vllm.v1.worker.gpu.sample.sampler import Sampler

        assert hasattr(getattr(ModelState, "custom_sampler", None), "replaced") is has_v2()
        assert hasattr(Sampler.__init__, "replaced") is not has_v2()

    @pytest.mark.skipif(not has_v2(), reason="the plugin leaves this V2 runner alone")
    def test_what_the_adapter_calls_is_there(self) -> None:
        from vllm.v1.worker.gpu import model_runner
        from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor
        from vllm.v1.worker.gpu.model_states.interface import ModelState
        from vllm.v1.worker.gpu.sample.sampler import Sampler
        from vllm.v1.worker.gpu.sample.states import SamplingStates

        assert list(inspect.signature(ModelState.custom_sampler).parameters) == ["self", "sampler"]
        shared = ["self", "logits", "expanded_idx_mapping", "idx_mapping", "idx_mapping_np", "pos", "input_ids"]
        sample = list(inspect.signature(Sampler.sample).parameters)
        apply = list(inspect.signature(Sampler.apply_sampling_params).parameters)
        assert sample[:7] == apply[:7] == shared
        assert sample[-1] == "return_logprobs"
        assert apply[-1] == "skip_top_k_top_p"
        assert sample[:-1] == apply[:-1]
        states = list(inspect.signature(SamplingStates.get_top_k_top_p).parameters)
        assert states[:3] == ["self", "expanded_idx_mapping", "idx_mapping_np"]
        assert states[3:] in ([], ["vocab_size"])
        # The host's values, and a mapping that is the requests' own where each of them has one row.
        assert "self.np = " in inspect.getsource(UvaBackedTensor.__init__)
        for name in ("temperature", "top_k", "top_p"):
            assert f"self.{name} = UvaBackedTensor(" in inspect.getsource(SamplingStates.__init__)
        assert "expanded_idx_mapping = idx_mapping" in inspect.getsource(model_runner)
        body = inspect.getsource(Sampler.__call__)
        assert "self.sample(" in body
        assert "return_logprobs=" in body

    @pytest.mark.skipif(not has_v2(), reason="the plugin leaves this V2 runner alone")
    def test_what_the_adapter_calls_of_drafts_is_there(self, plugin: None) -> None:
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

        verify = RejectionSampler._verify.replaced
        ours = list(inspect.signature(vllm_v2._verify_here).parameters)
        assert list(inspect.signature(verify).parameters) == ["self", *ours[1:]]
        chunks = inspect.unwrap(RejectionSampler._verify_in_chunks)
        assert list(inspect.signature(chunks).parameters)[:3] == ["self", "logits", "input_batch"]
        body = inspect.getsource(chunks)
        assert body.count("self._verify(") == 1
        assert "for start, end in request_chunks:" in body
        assert "input_batch.idx_mapping_np[start:end]" in body
        assert "skip_top_k_top_p" not in inspect.getsource(verify)
        made = inspect.getsource(RejectionSampler.__init__)
        names = ["synthetic_conditional_rates", "watermark_key", "enable_adaptive_verification"]
        for name in [*names, "use_block_verification", "num_speculative_steps", "sampler"]:
            assert re.search(rf"self\.{name}\b.* = ", made), name
