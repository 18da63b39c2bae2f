"""An engine around the sampler and the rejection sampler of vLLM's V2 runner, whose kernels Triton's interpreter runs.

It does what the runner does before and after them: requests' states, the arrays of a step, what is written back. Its
model looks at the last two tokens of a text.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.v1.worker.gpu import input_batch as vllm_batch
from vllm.v1.worker.gpu import states as vllm_states
from vllm.v1.worker.gpu.sample import sampler as vllm_sampler
from vllm.v1.worker.gpu.spec_decode import rejection_sampler as vllm_rejection
from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

VOCAB_SIZE, ROOM, LONGEST = 1000, 16, 64
TABLES = torch.randn(2, VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(5)) * 2
Drafter = Callable[[list[int], int], list[int]]
"""Proposes tokens after a text, of a request by its number."""


def model(text: Sequence[int]) -> Tensor:
    """Returns float32 [VOCAB_SIZE] logits of the next token."""
    return TABLES[0, text[-1] % VOCAB_SIZE] + TABLES[1, text[-2] % VOCAB_SIZE]


def called_with(function: Callable[..., Any], known: dict[str, Any]) -> Any:
    """Calls a function of any version with those of the arguments that it has."""
    return function(**{name: value for name, value in known.items() if name in inspect.signature(function).parameters})


class Asked:
    """A request: what it asks for, its text, and what is reported of its tokens.

    Args:
        number: decides its prompt.
        mask: which ids its grammar allows, bool [VOCAB_SIZE]; None: it has none.
        asked: arguments of vLLM's `SamplingParams`.
    """

    def __init__(self, number: int, mask: Tensor | None = None, **asked: Any) -> None:
        self.number, self.mask, self.params = number, mask, SamplingParams(**asked)
        self.params._bad_words_token_ids = [[12], [13, 14]] if self.params.bad_words else None  # a tokenizer's
        self.prompt = [1 + number % 7, 2 + number % 11]
        self.output: list[int] = []
        self.logprobs: list[Any] = []
        self.place = -1


class Engine:
    """Steps of up to `ROOM` requests.

    Args:
        device: where the logits are.
        drafts: so many at most for a request; 0: nothing is speculated.
        mode: how logprobs are reported.
        vocab_size: of the rows; of another than the model's, the caller has logits.
    """

    def __init__(self, device: str, drafts: int = 0, mode: str = "raw_logprobs", vocab_size: int = VOCAB_SIZE) -> None:
        known: dict[str, Any] = {
            "max_num_reqs": ROOM,
            "max_model_len": LONGEST,
            "max_num_batched_tokens": 256,
            "num_speculative_steps": drafts,
            "vocab_size": vocab_size,
            "device": torch.device(device),
            "logprobs_mode": mode,
            "num_speculative_tokens": drafts + 1,
            "vllm_config": types.SimpleNamespace(reasoning_config=None),
        }
        self.device = device
        self.states = called_with(vllm_states.RequestState, known)
        self.sampler = called_with(vllm_sampler.Sampler, known | {"req_states": self.states})
        asked = types.SimpleNamespace(
            num_speculative_tokens=drafts,
            rejection_sample_method="standard",
            enable_adaptive_verification=False,
            fly_entropy_threshold=None,
            fly_entropy_top_k=None,
        )
        self.rejection_sampler = vllm_rejection.RejectionSampler(self.sampler, asked, torch.device(device))
        known |= {"max_num_logits": ROOM * (drafts + 1), "mask_stride": drafts + 1, "num_bonus_tokens": 1}
        self.masks = called_with(StructuredOutputsWorker, known)
        self.requests: list[Asked] = []
        self.steps = self.rows = 0

    def add(self, request: Asked) -> None:
        text = request.prompt + request.output
        self.states.add_request(str(request.number), len(request.prompt), text, 0, max_tokens=LONGEST)
        request.place = self.states.req_id_to_index[str(request.number)]
        known = {"req_idx": request.place, "prompt_len": len(request.prompt), "sampling_params": request.params}
        called_with(self.sampler.add_request, known)
        self.requests.append(request)

    def remove(self, request: Asked) -> None:
        self.states.remove_request(str(request.number))
        self.requests.remove(request)

    def decode(
        self, length: int, drafter: Drafter | None = None, draft_logits: Tensor | None = None
    ) -> list[list[int]]:
        """Decodes until each request has so many tokens at least; returns the first of each."""
        while min(len(request.output) for request in self.requests) < length:
            of_each = [drafter(each.prompt + each.output, each.number) if drafter else [] for each in self.requests]
            self.step(of_each, draft_logits)
        return [request.output[:length] for request in self.requests]

    def step(self, drafts: list[list[int]], draft_logits: Tensor | None = None) -> Any:
        """Does a step in which each request has drafts, and returns vLLM's output."""
        batch = self.prepared(drafts)
        logits = self.masked(batch, torch.stack([model(text) for text in self.places(drafts)]).to(self.device))
        output = self.sampled(batch, logits, draft_logits)
        self.write_back(batch, output)
        return output

    def places(self, drafts: list[list[int]]) -> list[list[int]]:
        """Returns the texts after which a step looks for a token: of each request, and after each of its drafts."""
        texts = [each.prompt + each.output for each in self.requests]
        return [text + ids[:count] for text, ids in zip(texts, drafts, strict=True) for count in range(len(ids) + 1)]

    def prepared(self, drafts: list[list[int]]) -> Any:
        """Returns what the runner tells its samplers of a step."""
        self.states.apply_staged_writes()
        self.sampler.apply_staged_writes()
        places = self.places(drafts)
        counts = np.array([len(ids) + 1 for ids in drafts])
        ends = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
        of_requests = np.array([each.place for each in self.requests], np.int32)
        lengths = np.array([len(places[end - 1]) for end in ends[1:]], np.int32)

        def there(values: Any, dtype: torch.dtype) -> Tensor:
            return torch.as_tensor(values, dtype=dtype).to(self.device)

        local = np.concatenate([np.arange(count) for count in counts])
        return types.SimpleNamespace(
            req_ids=[str(each.number) for each in self.requests],
            num_reqs=len(counts),
            num_draft_tokens=len(places) - len(counts),
            num_draft_tokens_per_req=counts - 1,
            idx_mapping=there(of_requests, torch.int32),
            idx_mapping_np=of_requests,
            expanded_idx_mapping=there(of_requests.repeat(counts), torch.int32),
            expanded_local_pos=there(local, torch.int32),
            cu_num_logits=there(ends, torch.int32),
            cu_num_logits_np=ends,
            query_start_loc=there(ends, torch.int32),
            logits_indices=torch.arange(len(places), device=self.device),
            input_ids=there([text[-1] for text in places], torch.int32),
            positions=there([len(text) - 1 for text in places], torch.int64),
            seq_lens=there(lengths, torch.int32),
            seq_lens_cpu_upper_bound=torch.from_numpy(lengths),
            seq_lens_np=lengths,
        )

    def masked(self, batch: Any, logits: Tensor) -> Tensor:
        """Returns the logits with -inf for what grammars forbid."""
        counts = np.diff(batch.cu_num_logits_np)
        rows = [each.mask for each, count in zip(self.requests, counts, strict=True) for _ in range(count)]
        packed = [np.packbits(row.numpy(), bitorder="little") for row in rows if row is not None]
        if packed:
            words = np.pad(np.stack(packed), ((0, 0), (0, -len(packed[0]) % 4))).view(np.int32)
            names = [str(each.number) for each in self.requests if each.mask is not None]
            self.masks.apply_grammar_bitmask(logits, batch, names, words)
        return logits

    def sampled(self, batch: Any, logits: Tensor, draft_logits: Tensor | None = None) -> Any:
        """Lets vLLM's samplers do the step, as the runner does."""
        self.steps, self.rows = self.steps + 1, self.rows + len(logits)
        if batch.num_draft_tokens:
            return self.rejection_sampler(logits, batch, draft_logits)
        return self.sampler(logits, batch)

    def write_back(self, batch: Any, output: Any) -> None:
        """Appends the tokens to the texts and to the runner's states."""
        tokens, counts = output.sampled_token_ids, output.num_sampled
        vllm_batch.post_update(
            batch.idx_mapping,
            self.states.num_computed_tokens.gpu,
            self.states.last_sampled_tokens,
            self.sampler.penalties_state.output_bin_counts,
            tokens,
            counts,
            output.num_rejected,
            batch.query_start_loc,
            self.states.all_token_ids.gpu,
            self.states.total_len.gpu,
        )
        reported = output.logprobs_tensors
        starts = batch.cu_num_logits_np
        rows: Iterator[tuple[list[int], int]] = zip(tokens.tolist(), counts.tolist(), strict=True)
        for number, (request, (ids, count)) in enumerate(zip(self.requests, rows, strict=True)):
            request.output += ids[:count]
            if reported is not None:
                places = slice(starts[number], starts[number] + count)
                request.logprobs += reported.logprobs[places].tolist()
