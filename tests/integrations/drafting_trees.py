"""Trees of drafts as SGLang lays them out, decoding with them, and the checks of it, whose ever the functions are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.integrations.drafting_engine import LENGTH, VOCAB_SIZE, model
from tests.integrations.vllm_batches import Request

NODES = 7
OFF = 1 << 30
DEVICE = "cpu"
"""Where SGLang's tensors are: `sglang_npu.py` puts them elsewhere."""
REQUESTS: tuple[dict[str, Any], ...] = (
    {"prompt": [3, 4], "seed": 1, "temperature": 0.7, "top_k": OFF},
    {"prompt": [7, 1, 2], "seed": 5, "temperature": 1.0, "top_k": 1},  # greedy, as SGLang says it
    {"prompt": [5, 6], "seed": 2, "top_k": 5},
    {"prompt": [8, 8, 8], "seed": 3, "top_k": OFF, "top_p": 0.8},
)


def there(tensor: Tensor) -> Tensor:
    return tensor.to(DEVICE)


def requests() -> list[Request]:
    return [Request(**kind) for kind in REQUESTS]


def info_of(asked: list[Request], **changes: Any) -> dict[str, Any]:
    """Returns what SGLang's `SamplingBatchInfo` has of the requests."""
    values = {
        "temperatures": torch.tensor([[each.temperature] for each in asked]),
        "top_ks": torch.tensor([each.top_k for each in asked], dtype=torch.int32),
        "top_ps": torch.tensor([each.top_p for each in asked]),
        "min_ps": torch.zeros(len(asked)),
        "is_all_greedy": False,
        "is_any_greedy": True,
        "need_top_p_sampling": True,
        "need_top_k_sampling": True,
        "need_min_p_sampling": False,
        "vocab_size": VOCAB_SIZE,
        "sampling_seed": torch.tensor([each.seed for each in asked]),
    }
    return {name: there(value) if isinstance(value, Tensor) else value for name, value in (values | changes).items()}


def follow(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
    topk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Follows the trees by the tokens of their nodes, as SGLang's kernels of a device do it."""
    for row in range(len(candidates)):
        node, count = 0, 0
        while True:
            token = target_predict[row, node]
            predicts[retrieve_index[row, node]] = token
            accept_index[row, count] = retrieve_index[row, node]
            node = int(retrieve_next_token[row, node])
            while node != -1 and candidates[row, node] != token:
                node = int(retrieve_next_sibling[row, node])
            if node == -1:
                break
            count += 1
        accept_token_num[row] = count
    return predicts, accept_index, accept_token_num


class Trees:
    """Steps of requests with a tree of drafts each.

    Args:
        sample: draws the next tokens, int [requests], from logits, SGLang's tensors and positions.
        verify: SGLang's `eagle_sample`.
        info: makes SGLang's tensors of the values by their names.
    """

    def __init__(self, sample: Callable[..., Tensor], verify: Callable[..., Any], info: Callable[..., Any]) -> None:
        self.sample, self.verify = sample, verify
        self.requests, self.is_chain = requests(), False
        self.info = info(**info_of(self.requests))

    def plain(self) -> list[list[int]]:
        """Decodes without drafts."""
        for _ in range(LENGTH):
            texts = [each.prompt + each.output for each in self.requests]
            positions = there(torch.tensor([len(text) - 1 for text in texts]))
            drawn = self.sample(there(torch.stack([model(text) for text in texts])), self.info, positions)
            for each, token in zip(self.requests, drawn.tolist(), strict=True):
                each.output.append(token)
        return [each.output for each in self.requests]

    def decode(self, is_chain: bool, right: list[list[int]]) -> list[list[int]]:
        """Decodes with drafts of which about half are what plain decoding gives."""
        generator, self.steps, self.is_chain = torch.Generator().manual_seed(2), 0, is_chain
        while min(len(each.output) for each in self.requests) < LENGTH:
            self.step([self.tree(is_chain, right[row], row, generator) for row in range(len(self.requests))])
            self.steps += 1
        return [each.output[:LENGTH] for each in self.requests]

    def tree(self, is_chain: bool, right: list[int], row: int, generator: torch.Generator) -> list[tuple[int, int]]:
        """Returns the nodes of a request: tokens, and which node each comes after. The first is the last token."""
        request = self.requests[row]
        nodes, depth, on_path = [((request.prompt + request.output)[-1], -1)], [0], {0}
        for node in range(1, NODES):
            parent = node - 1 if is_chain else int(torch.randint(node, (), generator=generator))
            token = int(torch.randint(VOCAB_SIZE, (), generator=generator))
            at = len(request.output) + depth[parent]
            is_right = (
                parent in on_path and at < len(right) and not any(right[at] == t for t, p in nodes if p == parent)
            )
            if is_right and int(torch.randint(4, (), generator=generator)):
                token = right[at]
                on_path.add(node)
            nodes.append((token, parent))
            depth.append(depth[parent] + 1)
        return nodes

    def step(self, trees: list[list[tuple[int, int]]]) -> None:
        """Verifies the trees."""
        rows, texts, positions = [], [], []
        for request, nodes in zip(self.requests, trees, strict=True):
            children = [[each for each in range(NODES) if nodes[each][1] == node] for node in range(NODES)]
            siblings = dict(pair for some in children for pair in itertools.pairwise(some))
            first = [some[0] if some else -1 for some in children]
            rows.append((first, [siblings.get(node, -1) for node in range(NODES)]))
            of_nodes: list[list[int]] = []
            for token, parent in nodes:
                of_nodes.append([*of_nodes[parent], token] if of_nodes else request.prompt + request.output)
            texts += of_nodes
            positions += [len(text) - 1 for text in of_nodes]
        lengths = torch.tensor([len(each.prompt + each.output) - 1 for each in self.requests])
        verify_input = SimpleNamespace(
            draft_token=there(torch.tensor([token for nodes in trees for token, _ in nodes])),
            positions=there(torch.tensor(positions)),
            retrieve_index=there(torch.arange(len(trees) * NODES).view(-1, NODES)),
            retrieve_next_token=there(torch.tensor([first for first, _ in rows])),
            retrieve_next_sibling=there(torch.tensor([sibling for _, sibling in rows])),
            draft_token_num=NODES,
            max_tree_depth=NODES,
            tree_topk=1 if self.is_chain else -1,
            seq_lens_cpu=lengths if self.is_chain else None,
        )
        batch = SimpleNamespace(
            device=DEVICE,
            seq_lens=there(lengths),
            sampling_info=self.info,
            forward_mode=SimpleNamespace(is_idle=lambda: False),
            return_logprob=False,
        )
        logits = SimpleNamespace(next_token_logits=there(torch.stack([model(text) for text in texts])))
        predict, lengths, accept_index = self.verify(verify_input, batch, logits)
        for request, length, path in zip(self.requests, lengths.tolist(), accept_index, strict=True):
            request.output += predict[path[:length].long()].tolist()


class TreeChecks:
    """Takes what makes `Trees` from a fixture `sglang`, with the adapter installed."""

    @pytest.mark.parametrize("is_chain", [True, False])
    def test_texts_are_those_without_speculation(self, sglang: Any, is_chain: bool) -> None:
        expected = Trees(*sglang).plain()
        trees = Trees(*sglang)
        assert trees.decode(is_chain, expected) == expected
        assert trees.steps < LENGTH * 0.8

    def test_without_seeds_texts_differ(self, sglang: Any) -> None:
        texts = []
        for _ in range(2):
            trees = Trees(*sglang)
            trees.info.sampling_seed = None
            texts.append(trees.decode(False, [[]] * len(REQUESTS)))
        assert texts[0][1] == texts[1][1]  # the greedy one
        assert texts[0] != texts[1]
