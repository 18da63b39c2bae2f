"""The functions that vllm-ascend replaces in vLLM's V2 runner: each against the same, written row by row."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.integrations import vllm_components, vllm_functions, vllm_rejection
from tests.integrations import vllm_function_costs
from tests.integrations.drafting_checks import BEYOND_CHANCE
from tests.integrations.vllm_stand_ins import LogprobsTensors

INF, NAN = float("inf"), float("nan")
SLOTS = torch.tensor([2, 0, 3, 3], dtype=torch.int32)
"""The requests of four rows, of which the last two are of one with a draft."""
LOCAL = torch.tensor([0, 0, 0, 1])


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.outputs", SimpleNamespace(LogprobsTensors=LogprobsTensors))


def done_there(change: Callable[..., None], device: str, logits: Tensor, *arguments: Any) -> Tensor:
    """What a function that changes logits in place makes of them on a device, and of nothing else."""
    there = [each.to(device) if isinstance(each, Tensor) else each for each in arguments]
    changed = logits.to(device)  # a copy, also on a CPU
    changed = changed.clone()
    change(changed, *there)
    for before, after in zip(arguments, there, strict=True):
        assert not isinstance(before, Tensor) or torch.equal(before, after.cpu())
    return changed.cpu()


def random_logits(rows: int = 4, vocab_size: int = 300) -> Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(rows)) * 3


class TestInPlace:
    def test_temperature(self, device: str) -> None:
        logits, temperature = random_logits(), torch.tensor([0.5, 9.0, 0.0, 1.0])
        expected = logits / torch.tensor([1.0, 0.5, 1.0, 1.0]).unsqueeze(1)
        assert torch.equal(done_there(vllm_functions.apply_temperature, device, logits, SLOTS, temperature), expected)

    def test_temperature_of_16_bits_is_rounded_once(self, device: str) -> None:
        logits, temperature = random_logits().bfloat16(), torch.tensor([0.3, 9.0, 0.7, 1.3])
        expected = (logits.float() / temperature[SLOTS.long()].unsqueeze(1)).bfloat16()
        assert torch.equal(done_there(vllm_functions.apply_temperature, device, logits, SLOTS, temperature), expected)

    def test_min_p(self, device: str) -> None:
        logits = torch.tensor([[2.0, 1.0, -4.0, -INF], [0.0, -1.0, -2.0, 0.0], [1.0, 0.9, 0.8, 1.1], [-INF] * 4])
        min_p = torch.tensor([0.3, 9.0, 0.5, 0.95])  # exp(-1) is 0.37, exp(-0.2) 0.82, exp(-0.1) 0.90
        found = done_there(vllm_functions.apply_min_p, device, logits, SLOTS, min_p)
        assert found.tolist() == [[2, -INF, -INF, -INF], [0, -1, -INF, 0], [-INF, -INF, -INF, logits[2, 3]], [-INF] * 4]

    def test_min_p_of_0_keeps_all(self, device: str) -> None:
        logits = torch.tensor([[2.0, INF, -300.0, -INF]] * 4)
        assert torch.equal(done_there(vllm_functions.apply_min_p, device, logits, SLOTS, torch.zeros(4)), logits)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_bitmask(self, device: str, dtype: torch.dtype) -> None:
        logits = random_logits(vocab_size=70).to(dtype)
        words = torch.tensor([[-1, 1, 3], [2, -(2**31), 0]], dtype=torch.int32)
        rows = torch.tensor([3, 1], dtype=torch.int32)
        expected = logits.clone()
        for row, of_row in zip(rows.tolist(), words.tolist(), strict=True):
            for token in range(70):
                if not of_row[token // 32] >> token % 32 & 1:
                    expected[row, token] = -INF

        def launched(there: Tensor, indices: Tensor, masks: Tensor) -> None:
            kernel = vllm_functions.grammar_bitmask_kernel[(2, 1)]
            kernel(there, there.stride(0), indices, masks, masks.stride(0), 70, BLOCK_SIZE=8192)

        for change in (vllm_functions.apply_grammar_bitmask, launched):
            assert torch.equal(done_there(change, device, logits, rows, words), expected)


def penalised(logits: Tensor, slots: Tensor, ids: Tensor, local: Tensor, *of_slots: Tensor) -> Tensor:
    """Penalties, an id at a time, as vLLM's kernel reads."""
    repetition, frequency, presence, words, counts = of_slots
    found = logits.double()
    for row, slot in enumerate(slots.tolist()):
        before = Counter(ids[row - int(local[row]) + 1 : row + 1].tolist())
        for token in range(logits.shape[1]):
            count = int(counts[slot, token]) + before[token]
            in_prompt = int(words[slot, token // 32]) >> token % 32 & 1
            x = found[row, token].item()
            if in_prompt or count:
                x = x / repetition[slot].item() if x > 0 else x * repetition[slot].item()
            found[row, token] = x - frequency[slot].item() * count - presence[slot].item() * (count > 0)
    return found.to(logits.dtype)


class TestPenalties:
    SLOTS = torch.tensor([1, 0, 0, 0, 3, 3], dtype=torch.int32)
    LOCAL = torch.tensor([0, 0, 1, 2, 0, 1])
    IDS = torch.tensor([7, 5, 8, 8, 8, -1])

    def arguments(self, vocab_size: int = 70) -> tuple[Tensor, ...]:
        make = torch.Generator().manual_seed(4)
        words = torch.randint(-(2**31), 2**31, (4, 3), generator=make, dtype=torch.int32)
        counts = torch.randint(0, 3, (4, vocab_size), generator=make, dtype=torch.int32)
        counts[0, 8] = 0  # drafts alone have it
        numbers = (torch.tensor([1.5, 0.6, 9, 1.2]), torch.tensor([0.2, 0.0, 9, -0.3]), torch.tensor([0.5, 0.0, 9, 0]))
        return self.SLOTS, self.IDS, self.LOCAL, *numbers, words, counts

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("at_once", [2**26, 150])
    def test_rows(self, device: str, dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vllm_functions, "MOST_NUMBERS", at_once)  # 150 are two rows
        logits, arguments = random_logits(6, 70).to(dtype), self.arguments()
        found = done_there(vllm_functions.apply_penalties, device, logits, *arguments)
        close = 1e-6 if dtype == torch.float32 else 0.01
        torch.testing.assert_close(found, penalised(logits, *arguments), rtol=close, atol=close)

    def test_neutral_rows_keep_their_bits(self, device: str) -> None:
        logits, (slots, ids, local, *_, words, counts) = random_logits(6, 70), self.arguments()
        logits[0, :2] = torch.tensor([-0.0, NAN])
        neutral = (torch.ones(4), torch.zeros(4), torch.zeros(4))
        found = done_there(vllm_functions.apply_penalties, device, logits, slots, ids, local, *neutral, words, counts)
        assert torch.equal(found.view(torch.int32), logits.view(torch.int32))

    def test_what_is_counted(self, device: str) -> None:
        ids = torch.randint(0, 70, (4, 20), generator=torch.Generator().manual_seed(5), dtype=torch.int32)
        prompt_len, prefill_len = torch.tensor([3, 1, 20, 0]), torch.tensor([9, 1, 20, 7])
        words, counts = torch.full((4, 3), 9, dtype=torch.int32), torch.full((4, 70), 9, dtype=torch.int32)
        slots = torch.tensor([3, 0, 2], dtype=torch.int32)
        there = [each.to(device) for each in (slots, ids, prompt_len, prefill_len, words, counts)]
        vllm_functions.bincount(*there, 20)
        found_words, found_counts = (each.cpu() for each in there[-2:])
        assert found_words[1].tolist() == [9] * 3
        assert found_counts[1].tolist() == [9] * 70
        for slot in slots.tolist():
            prompt = ids[slot, : prompt_len[slot]].tolist()
            output = Counter(ids[slot, prompt_len[slot] : prefill_len[slot]].tolist())
            bits = [int(found_words[slot, token // 32]) >> token % 32 & 1 for token in range(96)]
            assert bits == [int(token in prompt) for token in range(96)]
            assert found_counts[slot].tolist() == [output[token] for token in range(70)]

    def test_what_is_counted_is_what_is_penalised(self, device: str) -> None:
        slot, words, counts = torch.zeros(1, dtype=torch.int32), torch.zeros(1, 3).int(), torch.zeros(1, 70).int()
        ids = torch.tensor([[1, 33, 69, 2, 2]], dtype=torch.int32)
        there = [each.to(device) for each in (slot, ids, torch.tensor([3]), torch.tensor([5]), words, counts)]
        vllm_functions.bincount(*there, 5)
        logits, one = torch.ones(1, 70), torch.tensor([1.0])
        zero = torch.zeros(1, dtype=torch.int64)
        of_slots = (4 * one, one, 0.5 * one, there[-2].cpu(), there[-1].cpu())
        found = done_there(vllm_functions.apply_penalties, device, logits, slot, zero, zero, *of_slots)
        expected = {1: 0.25, 33: 0.25, 69: 0.25, 2: 0.25 - 2 - 0.5}
        assert found[0].tolist() == [expected.get(token, 1.0) for token in range(70)]


class TestBadWords:
    WORDS = ([[5]], [[7, 8], [7, 9], [9, 1, 2], [3, 4, 8]], [], [[6, 5], [8, 8], [6, 8, 3], [1, 2, 3, 4, 5, 6, 7, 1]])
    TEXTS = ([1, 2, 7], [1, 7, 9, 7], [4], [6, 6])
    """Of each slot, its prompt's one token first."""

    @pytest.mark.parametrize("most", [4, 6])
    def test_rows(self, device: str, most: int) -> None:
        slots, local = torch.tensor([1, 0, 3, 3, 3, 2]).int(), torch.tensor([0, 0, 0, 1, 2, 0])
        ids = torch.tensor([7, 7, 6, 8, 8, 4])  # of the third request two drafts, 8 and 8
        tokens, offsets, texts = torch.full((4, 16), 1), torch.full((4, 8), 3), torch.zeros(4, 9)
        for slot, (words, text) in enumerate(zip(self.WORDS, self.TEXTS, strict=True)):
            flat = [token for word in words for token in word]
            tokens[slot, : len(flat)] = torch.tensor(flat)
            offsets[slot, : len(words) + 1] = torch.tensor([0, *[len(word) for word in words]]).cumsum(0)
            texts[slot, : len(text)] = torch.tensor(text)
        lengths = torch.tensor([len(text) for text in self.TEXTS])
        arguments = (tokens.int(), offsets.int(), torch.tensor([len(words) for words in self.WORDS]))
        arguments += (texts.int(), torch.ones(4, dtype=torch.int64), lengths, ids, local, most)
        logits = random_logits(6, 10)
        found = done_there(vllm_functions.apply_bad_words, device, logits, slots, *arguments)
        forbidden = []
        for row, slot in enumerate(slots.tolist()):
            output = self.TEXTS[slot][1:] + ids[row - int(local[row]) + 1 : row + 1].tolist()
            starts = {len(word): max(0, len(output) - len(word) + 1) for word in self.WORDS[slot]}
            forbidden.append(
                sorted({word[-1] for word in self.WORDS[slot] if output[starts[len(word)] :] == word[:-1]})
            )
        assert forbidden == [[8, 9], [5], [5], [3, 8], [8], []]
        for row, ends in enumerate(forbidden):
            assert (found[row] == -INF).nonzero().view(-1).tolist() == ends
            stays = [token for token in range(10) if token not in ends]
            assert torch.equal(found[row, stays], logits[row, stays])

    def test_a_prefix_does_not_reach_into_the_prompt(self, device: str) -> None:
        slots, zero = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        words, offsets, texts = (
            torch.tensor([[4, 6, 2]]).int(),
            torch.tensor([[0, 3]]).int(),
            torch.tensor([[4, 6]]).int(),
        )
        for prompt, found in ((0, [-INF]), (1, [0.0])):
            arguments = (words, offsets, zero + 1, texts, zero + prompt, zero + 2, zero + 6, zero, 1)
            changed = done_there(vllm_functions.apply_bad_words, device, torch.zeros(1, 8), slots, *arguments)
            assert changed[0, 2:3].tolist() == found
            assert changed.isinf().sum() == (prompt == 0)

    def test_without_any(self, device: str) -> None:
        logits = random_logits()
        assert torch.equal(done_there(vllm_functions.apply_bad_words, device, logits, *[SLOTS] * 9, 0), logits)


class TestTopKTopP:
    K, P = torch.tensor([2, 5, 1, 3], dtype=torch.int32), torch.tensor([1.0, 0.7, 1.0, 0.5])
    KEPT = ([1, 2, 3], [1, 2], [1], [1])
    """Of exp(3), 2 exp(2), exp(1) and 1, which are 0.52, 0.19 twice, 0.07 and 0.03 of their sum."""

    @pytest.mark.parametrize("mask_value", [-INF, -9.0])
    def test_rows(self, device: str, mask_value: float) -> None:
        logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]] * 4)
        given = torch.zeros(4, 8).to(device)[:, :5]  # rows that lie apart
        given.copy_(logits)
        found = vllm_functions.apply_top_k_top_p(given, self.K.to(device), self.P.to(device), mask_value)
        assert found is given
        expected = [[x if token in kept else mask_value for token, x in enumerate(logits[0])] for kept in self.KEPT]
        assert torch.equal(given.cpu(), torch.tensor(expected))

    def test_nothing_to_drop(self, device: str) -> None:
        logits = torch.ones(2, 5).to(device)
        assert vllm_functions.apply_top_k_top_p(logits, None, None) is logits
        none = vllm_functions.apply_top_k_top_p(logits[:0], self.K[:0].to(device), None)
        assert none.shape == (0, 5)


def law(logits: Tensor) -> Tensor:
    return logits.double().softmax(-1)


def chi_square(tokens: Tensor, expected: Tensor) -> float:
    """Of how often each of eight tokens was drawn; `BEYOND_CHANCE` for those that must not be."""
    counts = tokens.bincount(minlength=len(expected)).double()
    assert (counts[expected == 0] == 0).all()
    counts, expected = counts[expected > 0], expected[expected > 0] * len(tokens)
    return float(((counts - expected) ** 2 / expected).sum())


class TestGumbelSample:
    MANY = 3000
    LOGITS = torch.tensor([1.0, 0.0, 2.0, -1.0, 1.5, -INF, 0.5, -2.0])

    def draw(self, device: str, logits: Tensor, slots: Tensor, *of_slots: Tensor, scale: bool = False) -> Tensor:
        there = [each.to(device) for each in (logits, slots, *of_slots)]
        found = vllm_functions.gumbel_sample(*there, scale)  # type: ignore[arg-type]
        assert torch.equal(there[0].cpu(), logits) or logits.isnan().any()
        return found.cpu()

    @pytest.mark.parametrize("scale", [False, True])
    def test_law(self, device: str, scale: bool) -> None:
        """Each row has a request of its own; the temperature is applied where that is asked for."""
        slots, zero = torch.arange(self.MANY).flip(0).int(), torch.zeros(self.MANY, dtype=torch.int32)
        temperature = torch.full((self.MANY,), 0.7)
        logits = self.LOGITS.repeat(self.MANY, 1)
        found = self.draw(device, logits, slots, temperature, torch.arange(self.MANY), zero, scale=scale)
        assert chi_square(found, law(self.LOGITS / (0.7 if scale else 1))) < BEYOND_CHANCE

    def test_a_token_is_a_function_of_its_request_and_position(self, device: str) -> None:
        logits, temperature = random_logits(16, 1000), torch.ones(5)
        slots = torch.tensor([3, 1, 4, 1, 0, 2, 2, 1, 3, 0, 4, 4, 3, 0, 1, 2], dtype=torch.int32)
        seed, pos = torch.tensor([5, -6, 2**62, 8, 9]), torch.arange(16)
        found = self.draw(device, logits, slots, temperature, seed, pos)
        alone = [
            self.draw(device, logits[row : row + 1], slots[row : row + 1], temperature, seed, pos[row : row + 1])
            for row in range(16)
        ]
        assert torch.equal(found, torch.cat(alone))
        assert torch.equal(found, self.draw("cpu", logits, slots, temperature, seed, pos))
        assert not torch.equal(found, self.draw(device, logits, slots, temperature, seed + 1, pos))
        assert not torch.equal(found, self.draw(device, logits, slots, temperature, seed, pos + 1))

    def test_noise_of_drafts_is_another(self, device: str) -> None:
        one, rows = torch.ones(1), torch.arange(64)
        arguments = (torch.zeros(64, 1000), torch.zeros(64).int(), one, torch.tensor([3]), rows)
        found = [self.draw(device, *arguments, scale=scale) for scale in (False, True)]
        assert (found[0] == found[1]).sum() < 5

    def test_rows_without_temperature(self, device: str) -> None:
        logits = torch.tensor([[1.0, 4.0, 4.0], [NAN, 1.0, 2.0], [-INF] * 3, [1.0, INF, INF]])
        slots, zero = torch.tensor([0, 1, -1, 0]).int(), torch.zeros(4, dtype=torch.int64)
        found = self.draw(device, logits, slots, torch.tensor([0.0, 0.0]), zero[:2], zero, scale=True)
        assert found.tolist() == [1, 2, 0, 1]

    @pytest.mark.parametrize("column", [None, torch.tensor(1), torch.tensor([0, 2, 1, 1], dtype=torch.int32)])
    @pytest.mark.parametrize("slots", [[2, -1, 0, -1], [-1, 3, -1, 0], [-1] * 4])
    def test_processed_logits(self, device: str, column: Tensor | None, slots: list[int]) -> None:
        """Rows of no request write nothing."""
        logits, temperature = random_logits(4, 10), torch.tensor([0.5, 1.0, 0.0, 2.0])
        written = torch.full((4, 3, 10) if column is not None else (4, 10), 7.0)
        expected, there = written.clone(), written.to(device).clone()
        for row, slot in enumerate(slots):
            if slot >= 0:
                step = None if column is None else int(column if column.dim() == 0 else column[row])
                divisor = temperature[slot] if temperature[slot] else 1.0
                expected[slot if step is None else (slot, step)] = logits[row] / divisor
        vllm_functions.gumbel_sample(
            *[each.to(device) for each in (logits, torch.tensor(slots).int(), temperature)],
            *[torch.zeros(4, dtype=torch.int64, device=device)] * 2,
            True,
            output_processed_logits=there,
            output_processed_logits_col=None if column is None else column.to(device),
        )
        assert torch.equal(there.cpu(), expected)

    def test_numbers_of_requests_may_lie_on_the_host(self, device: str) -> None:
        """As vllm-ascend has them where a device reads pinned memory."""
        logits, one, zero = random_logits(4, 50).to(device), torch.ones(4), torch.zeros(4, dtype=torch.int64)
        found = [
            vllm_functions.gumbel_sample(logits, SLOTS.to(device), *of_slots, zero.to(device), False).tolist()
            for of_slots in ((one, zero + 3), (one.to(device), zero.to(device) + 3))
        ]
        assert found[0] == found[1]


class TestLogprobs:
    def scores(self, device: str, logits: Tensor, most: int, tokens: Tensor, *more: Any, **options: Any) -> Any:
        found = vllm_functions.compute_topk_scores(logits.to(device), most, tokens.to(device), *more, **options)
        assert isinstance(found, LogprobsTensors)
        return LogprobsTensors(*[each.cpu() for each in found[:3]], found[3])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_of_ids(self, device: str, dtype: torch.dtype) -> None:
        logits = random_logits().to(dtype)
        ids = torch.tensor([[5, 299, 0], [1, 1, 2], [7, 8, 9], [0, 3, 298]], dtype=torch.int32)
        found = vllm_functions.compute_token_logprobs(logits.to(device), ids.to(device)).cpu()
        expected = logits.double().log_softmax(1).gather(1, ids.long()).float()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("logits_mode", [False, True])
    @pytest.mark.parametrize("most", [0, 3, 8])
    def test_the_best(self, device: str, most: int, logits_mode: bool) -> None:
        logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 0.0, -INF, 1.0, 2.0], [0.0] * 8])
        found = self.scores(device, logits, most, torch.tensor([2, 7]), [0, 1, 2], logits_mode=logits_mode)
        best = [[1, 3, 2, 7, 0, 6, 4, 5], list(range(8))]  # equals by ascending id
        assert found.logprob_token_ids.tolist() == [[2, *best[0][:most]], [7, *best[1][:most]]]
        numbers = logits if logits_mode else logits.double().log_softmax(1).float()
        torch.testing.assert_close(found.logprobs, numbers.gather(1, found.logprob_token_ids), rtol=1e-6, atol=1e-6)
        assert found.selected_token_ranks.tolist() == [4, 8]  # what is at least as good
        assert found.cu_num_generated_tokens == [0, 1, 2]

    @pytest.mark.parametrize("most", [0, 1, 3])
    def test_ids_that_requests_name(self, device: str, most: int) -> None:
        logits = random_logits(3, 8)
        named = torch.tensor([[4, 2, 99, 99], [99, 99, 99, 99], [1, 0, 0, 0]], dtype=torch.int32)
        state = SimpleNamespace(
            num_token_ids=SimpleNamespace(gpu=torch.tensor([2, 0, 1], dtype=torch.int32).to(device)),
            token_ids=SimpleNamespace(gpu=named.to(device)),
        )
        slots = torch.tensor([1, 0, 2], dtype=torch.int32)
        found = self.scores(device, logits, most, torch.tensor([3, 4, 5]), None, state, slots.to(device), 2)
        numbers, best = logits.double().log_softmax(1).float(), logits.argsort(1, descending=True)
        width = max(most, 2)
        ids = [[3, *best[0, :most].tolist()], [4, 4, 2], [5, 1]]
        for row, of_row in enumerate(ids):
            rest = 1 + width - len(of_row)
            assert found.logprob_token_ids[row].tolist() == of_row + [0] * rest
            expected = torch.cat((numbers[row, of_row], torch.full((rest,), -INF)))
            torch.testing.assert_close(found.logprobs[row], expected, rtol=1e-6, atol=1e-6)


IDS = torch.tensor([0, 1, 2, 300, 301, 302, 5, 303])
"""Of eight tokens, in two segments."""
WIDTH = 310


def wide(logits: Tensor) -> Tensor:
    return torch.full((*logits.shape[:-1], WIDTH), -INF).index_copy_(-1, IDS, logits)


def of_eight(tokens: Tensor) -> Tensor:
    """Which of the eight tokens each is: it must be one of them."""
    is_each = tokens.unsqueeze(-1) == IDS
    assert is_each.any(-1).all()
    return is_each.to(torch.int32).argmax(-1)


class Judged:
    """Many requests with equal laws, and drafts.

    Args:
        q: [steps, 8], what drafts are drawn from.
        p: [steps + 1, 8], the target's logits.
        counts: how many drafts requests have, in turn.
    """

    MANY = 3000

    def __init__(self, q: Tensor, p: Tensor, counts: tuple[int, ...] = (2,), temperature: float = 1.0) -> None:
        make = torch.Generator().manual_seed(11)
        self.steps = len(q)
        self.counts = torch.tensor(counts).repeat(self.MANY // len(counts))
        self.drafts = torch.stack([each.multinomial(self.MANY, True, generator=make) for each in q.softmax(1)], 1)
        self.slots = torch.arange(self.MANY).flip(0)
        self.ends = torch.cat((torch.zeros(1, dtype=torch.int64), (self.counts + 1).cumsum(0)))
        requests = torch.arange(self.MANY).repeat_interleave(self.counts + 1)
        self.local = torch.arange(len(requests)) - self.ends[requests]
        self.of_rows = self.slots[requests]
        self.logits = wide(p)[self.local]
        before = (self.local - 1).clamp(min=0)
        self.ids = torch.where(self.local > 0, IDS[self.drafts[requests, before]], 3)
        self.pos, self.seed = self.local + 10, torch.arange(self.MANY) * 7919
        self.temperature = torch.full((self.MANY,), temperature)
        self.draft_logits = wide(q).repeat(self.MANY, 1, 1)

    def run(self, device: str, certain: bool = False, **options: Any) -> list[list[int]]:
        """The tokens of each request."""
        draft_logits = None if certain else self.draft_logits.to(device)
        judged = (self.ids.int(), self.ends.int(), self.pos, self.slots.int(), self.of_rows.int(), self.local)
        there = [each.to(device) for each in (*judged, self.temperature, self.seed)]
        found, counts = vllm_rejection.rejection_sample(
            self.logits.to(device), draft_logits, *there, self.steps, **options
        )
        assert found.shape == (len(self.slots), self.steps + 1)
        assert (found.dtype, counts.dtype) == (torch.int64, torch.int32)
        assert (counts.cpu() <= self.counts + 1).all()
        return [of_eight(row[:count]).tolist() for row, count in zip(found.cpu(), counts.tolist(), strict=True)]


P = torch.tensor(
    [
        [1.0, 0.0, 2.0, -1.0, 1.5, -INF, 0.5, -2.0],
        [0.0, 1.0, -1.0, 2.0, 0.0, 1.0, -INF, 0.0],
        [2.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0],
    ]
)
Q = torch.tensor([[0.0, 1.0, 5.0, 1.0, 1.0, 0.0, 0.0, -INF], [1.0, 1.0, 1.0, 3.0, -1.0, 0.0, 0.0, 0.0]])


class TestRejectionSample:
    @pytest.mark.parametrize("block", [False, True])
    @pytest.mark.parametrize("certain", [False, True])
    @pytest.mark.parametrize("counts", [(2,), (2, 0, 1)])
    def test_law(self, device: str, counts: tuple[int, ...], certain: bool, block: bool) -> None:
        """Every token of a request has the target's law, whatever the drafts before it."""
        found = Judged(Q, P, counts).run(device, certain, use_block_verification=block)
        for step in range(3):
            tokens = [row[step] for row in found if len(row) > step]
            assert len(tokens) > 60
            assert chi_square(torch.tensor(tokens), law(P[step])) < BEYOND_CHANCE

    def test_law_of_what_follows_drafts_of_gumbel_sample(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They have the seeds and positions that judge them: a token that replaces one has other noise."""
        monkeypatch.setattr(Judged, "MANY", 30_000)
        p = torch.linspace(-1, 1, 8)
        judged = Judged(-p.unsqueeze(0), p.repeat(2, 1), (1,))
        is_judged = judged.local == 0
        slots, pos = judged.of_rows[is_judged], judged.pos[is_judged]
        of_slots = (judged.temperature, judged.seed)
        drafts = vllm_functions.gumbel_sample(judged.draft_logits[slots, 0], slots, *of_slots, pos, True)
        judged.ids[judged.local == 1] = drafts
        found = judged.run("cpu")
        assert sum(len(row) == 1 for row in found) > 10_000
        assert chi_square(torch.tensor([row[0] for row in found]), law(p)) < BEYOND_CHANCE

    @pytest.mark.parametrize("certain", [False, True])
    def test_how_many_are_accepted(self, device: str, certain: bool) -> None:
        """As many as the laws have in common."""
        p, q = law(P), law(Q)
        common = (p[:2] * q).sum(1) if certain else torch.minimum(p[:2], q).sum(1)
        counts = torch.tensor([len(row) for row in Judged(Q, P).run(device, certain)])
        chances = torch.stack((1 - common[0], common[0] * (1 - common[1]), common[0] * common[1]))
        assert chi_square(counts - 1, chances) < BEYOND_CHANCE

    @pytest.mark.parametrize("block", [False, True])
    def test_what_replaces_a_draft(self, device: str, block: bool) -> None:
        """The second of requests whose first one was a token that is proposed too often."""
        judged = Judged(Q, P)
        found = judged.run(device, use_block_verification=block)
        pairs = zip(found, judged.drafts[:, 0].tolist(), strict=True)
        tokens = torch.tensor([row[1] for row, first in pairs if first == 2 == row[0] and len(row) == 2])
        assert len(tokens) > 100
        scale = law(P[0])[2] / law(Q[0])[2] if block else 1.0
        left = (scale * law(P[1]) - law(Q[1])).clamp(min=0)
        assert chi_square(tokens, left / left.sum()) < BEYOND_CHANCE

    def test_block_accepts_more(self, device: str) -> None:
        lengths = [sum(map(len, Judged(Q, P).run(device, use_block_verification=on))) for on in (False, True)]
        assert lengths[1] > lengths[0] + 20

    def test_greedy(self, device: str) -> None:
        judged = Judged(Q, P, (2, 1), temperature=0.0)
        best = P.argmax(1).tolist()  # 2, 3, 0
        for options in ({}, {"certain": True}, {"use_block_verification": True}):
            for row, drafts, count in zip(judged.run(device, **options), judged.drafts, judged.counts, strict=True):
                accepted = 0
                while accepted < count and drafts[accepted] == best[accepted]:
                    accepted += 1
                assert row == best[: accepted + 1]

    def test_a_request_without_drafts_gets_the_token_of_gumbel_sample(self, device: str) -> None:
        judged = Judged(Q, P, (0, 2, 1))
        found = judged.run(device)
        rows = judged.ends[:-1]
        given = (judged.logits, judged.of_rows.int(), judged.temperature, judged.seed, judged.pos)
        drawn = of_eight(vllm_functions.gumbel_sample(*[each.to(device) for each in given], False).cpu())  # type: ignore
        assert [row[0] for row in found[::3]] == drawn[rows][::3].tolist()
        for row, end in zip(found, (judged.ends[1:] - 1).tolist(), strict=True):
            if len(row) == judged.steps + 1:
                assert row[-1] == drawn[end]

    def test_a_token_is_a_function_of_its_request(self, device: str) -> None:
        judged = Judged(Q, P, (2, 1))
        found, elsewhere = judged.run(device), judged.run("cpu")
        assert found == elsewhere
        alone = Judged(Q, P, (2, 1))
        alone.logits, alone.ids, alone.pos = judged.logits[5:8], judged.ids[5:8], judged.pos[5:8]
        alone.of_rows, alone.local, alone.slots = judged.of_rows[5:8], judged.local[5:8], judged.slots[2:3]
        alone.ends, alone.counts = torch.tensor([0, 3]), judged.counts[2:3]
        assert alone.run(device) == found[2:3]

    @pytest.mark.parametrize("no_id", [-1, WIDTH, 10**6])
    @pytest.mark.parametrize("block", [False, True])
    def test_what_is_no_id_is_replaced_by_a_draw_of_the_target(self, device: str, no_id: int, block: bool) -> None:
        judged = Judged(Q, P)
        judged.ids[judged.local == 1] = no_id
        found = judged.run(device, use_block_verification=block)
        assert {len(row) for row in found} == {1}
        assert chi_square(torch.tensor(found).view(-1), law(P[0])) < BEYOND_CHANCE

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_synthetic_rates(self, device: str, temperature: float) -> None:
        rates = torch.tensor([0.75, 0.25])
        judged = Judged(Q, P, temperature=temperature)
        found = judged.run(device, synthetic_conditional_rates=rates.to(device))
        expected = torch.tensor([0.25, 0.75 * 0.75, 0.75 * 0.25], dtype=torch.float64)
        assert chi_square(torch.tensor([len(row) - 1 for row in found]), expected) < BEYOND_CHANCE
        for row, drafts in zip(found, judged.drafts.tolist(), strict=True):
            assert row[:-1] == drafts[: len(row) - 1]

    def test_drafts_of_a_smaller_vocabulary(self, device: str) -> None:
        """What the target has beyond is padding."""
        judged = Judged(Q, P)
        expected = judged.run(device)
        judged.logits = torch.nn.functional.pad(judged.logits, (0, 4), value=9.0)
        assert judged.run(device) == expected

    def test_rows_of_16_bits(self, device: str) -> None:
        judged = Judged(Q, P)
        expected = judged.run(device)
        judged.logits, judged.draft_logits = judged.logits.bfloat16(), judged.draft_logits.bfloat16()
        assert judged.run(device) == expected

    def test_two_rules_at_once_are_refused(self) -> None:
        with pytest.raises(ValueError, match="use_block_verification"):
            Judged(Q, P).run("cpu", synthetic_conditional_rates=torch.ones(2), use_block_verification=True)


MOST_LAUNCHES = {
    "apply_temperature": 5,
    "apply_min_p": 6,
    "apply_top_k_top_p": 71,
    "apply_penalties": 31,
    "bincount": 26,
    "apply_bad_words": 58,
    "apply_grammar_bitmask": 5,
    "gumbel_sample": 164,
    "gumbel_sample, of drafts": 180,
    "compute_token_logprobs": 20,
    "compute_topk_scores": 20,
    "rejection_sample": 222,
    "rejection_sample, certain drafts": 208,
    "rejection_sample, block": 426,
}


def test_costs(counting: None) -> None:
    """Launches, at most one copy to the device, and nobody waits; docs/maintainers.md shows what is counted."""
    costs = vllm_function_costs.measured()
    assert costs.keys() == MOST_LAUNCHES.keys()
    for name, cost in costs.items():
        assert cost.launches <= MOST_LAUNCHES[name], (name, cost)
        assert cost.copies in ({}, {"h2d": 1}), (name, cost)
        assert cost.waits == 0, (name, cost)
    page = Path(__file__).parents[2] / "docs" / "maintainers.md"
    assert vllm_function_costs.table(costs) in page.read_text()


@dataclass(frozen=True)
class Components:
    """Of vLLM's PR #53895, two fields."""

    sampler_cls: type
    request_state_cls: type = dict


class Sampler:
    """V2's, as vLLM 0.27 has it, of requests whose parameters lie on the device."""

    def __init__(self, device: str) -> None:
        numbers = {"temperature": torch.tensor([1.0, 0.0, 0.7]), "seeds": torch.tensor([5, 6, 7])}
        self.sampling_states = SimpleNamespace(
            **{name: SimpleNamespace(gpu=each.to(device)) for name, each in numbers.items()}
        )

    def apply_sampling_params(
        self, logits: Tensor, expanded_idx_mapping: Tensor, pos: Tensor, skip_top_k_top_p: bool = False
    ) -> Tensor:
        assert not skip_top_k_top_p
        return logits + pos.unsqueeze(1) * torch.arange(logits.shape[1], device=logits.device)

    def sample(
        self, logits: Tensor, expanded_idx_mapping: Tensor, pos: Tensor, return_logprobs: bool = False
    ) -> tuple[Tensor, Tensor]:
        raise AssertionError("it is another one that draws")


class TestComponents:
    def test_the_sampler_draws_here(self, device: str) -> None:
        given = Components(Sampler)
        found = vllm_components.runner_components(given)
        assert (given.sampler_cls, found.request_state_cls) == (Sampler, dict)
        logits, slots, pos = (
            each.to(device) for each in (random_logits(3, 50), torch.tensor([2, 0, 1]), torch.arange(3))
        )
        sampler = found.sampler_cls(device)
        drawn, processed = sampler.sample(logits, slots, pos, return_logprobs=True)
        assert torch.equal(processed, Sampler(device).apply_sampling_params(logits, slots, pos))
        states = sampler.sampling_states
        expected = vllm_functions.gumbel_sample(processed, slots, states.temperature.gpu, states.seeds.gpu, pos, False)
        assert torch.equal(drawn, expected)

    def test_it_can_be_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ASCEND_SAMPLE_VLLM", "0")
        given = Components(Sampler)
        assert vllm_components.runner_components(given) is given
