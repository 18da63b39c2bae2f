"""Calls vLLM's plugin as vLLM does: before anything that the plugin changes is imported."""

from __future__ import annotations

import sys

from ascend_sample.integrations import vllm

CHANGED = {*vllm.CLASS_NAMES, *vllm.REJECTION_SAMPLERS, vllm.INPUT_BATCH, vllm.V2_SAMPLER}
CHANGED |= {vllm.V2_REJECTION_SAMPLER, vllm.ASCEND_V2_RUNNER}

vllm.register()
assert not CHANGED & sys.modules.keys(), "neither the plugin imports them, nor anything before it"
