"""The benchmark of speculative sampling: its models are right with their caches, and it judges what it measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import language_model
import pytest
import torch

from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.sampling import SamplingParams
from benchmarks import (
    assisted,
    beam_search,
    decoding_docs,
    greedy_identity,
    normalisation,
    speculative,
    speculative_requests,
)
from benchmarks.cached_language_model import CachedLanguageModel
from benchmarks.draft_and_target import CachedNetwork, Network, NetworkConfig, Trained, load_or_train
from benchmarks.speculative import Case, StepCosts

TINY = NetworkConfig(
    vocab_size=40,
    width=16,
    layers=3,
    draft_layers=1,
    heads=2,
    feed_forward_width=24,
    context_size=64,
    texts=4,
    text_tokens=20,
    steps=3,
    batch_size=2,
    warmup_steps=1,
)
TINY_LANGUAGE_MODEL = language_model.ModelConfig(
    vocab_size=60, context_size=64, width=16, layers=3, heads=2, feed_forward_width=24
)


def sharp_language_model() -> language_model.LanguageModel:
    network = language_model.LanguageModel(TINY_LANGUAGE_MODEL).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8.0 if parameter.dim() == 2 else 1.0)
    return network


@pytest.mark.parametrize("is_draft", [True, False])
def test_cached_passes_equal_uncached_ones(is_draft: bool) -> None:
    network = Network(TINY).eval()
    model = CachedNetwork(network, is_draft=is_draft)
    whole = torch.randint(40, (2, 12))

    def uncached(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return network(ids)[0 if is_draft else 1]

    first, cache, _ = model.prefill(whole[:, :5], torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
    torch.testing.assert_close(first[0], uncached(whole[:1, :5])[0, -1])
    torch.testing.assert_close(first[1], uncached(whole[1:, :3])[0, -1])
    cache = model.decode(whole[:, 8:], cache).cache
    cache = model.rollback(cache, torch.tensor([5, 2]))
    cache = model.reorder(model.expand(cache, 2), torch.tensor([3, 0]))
    logits = model.decode(whole[:, 9:], cache).logits
    torch.testing.assert_close(logits[0], uncached(torch.cat((whole[1:, :2], whole[:1, 9:]), 1))[0, 2:])
    torch.testing.assert_close(logits[1], uncached(torch.cat((whole[:1, :5], whole[1:, 9:]), 1))[0, 5:])


def test_the_demos_model_with_its_cache_equals_the_model() -> None:
    network = sharp_language_model()
    ids = torch.randint(60, (2, 9))
    with torch.no_grad():
        expected, _ = network(ids)
    model = CachedLanguageModel(network)
    first, cache, _ = model.prefill(ids[:, :4])
    torch.testing.assert_close(first, expected[:, 3])
    cache = model.rollback(model.decode(ids[:, :2], cache).cache, torch.tensor([4, 3]))
    logits = model.decode(torch.stack((ids[0, 4:8], ids[1, 3:7])), cache).logits
    torch.testing.assert_close(logits, torch.stack((expected[0, 4:8], expected[1, 3:7])))


def test_greedy_texts_of_a_language_model_are_its_own() -> None:
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(60, (3 + row % 6,), generator=generator).tolist() for row in range(60)]
    found = greedy_identity.compare_greedy(sharp_language_model(), prompts, 12)
    assert found["differing"] == {"its first two layers": 0, "n-grams of the text": 0}
    assert found["prompts"] == 60
    assert 0.0 < found["acceptance"]["its first two layers"] < 1.0


def test_both_libraries_accept_all_drafts_of_an_agreeing_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assisted, "NEW_TOKENS", 17)
    target, draft = assisted.agreeing_pair(TINY)
    passes = []
    for model in (target, draft):
        model.register_forward_hook(lambda module, *_: passes.append(module))
    prompt = torch.randint(40, (1, 5), generator=_generator(1))
    texts = {}
    for way, run in assisted.ways_of("greedy", target, draft, prompt, 0).items():
        passes.clear()
        texts[way] = run().tolist()
        counts = (passes.count(target), passes.count(draft))
        # Ours reads the prompt, then 2 rounds of 8 tokens; theirs reads it with the first draft, and is left with one.
        assert counts == ((17, 0) if way[1] == assisted.PLAIN else (3, 15 if way[0] == assisted.OURS else 14))
    assert len({str(text) for text in texts.values()}) == 1
    for run in assisted.ways_of("sampled", target, draft, prompt, 0).values():
        assert run().shape == (1, 17)


def test_assisted_generation_is_described_and_judged() -> None:
    ours, theirs = assisted.OURS, assisted.THEIRS
    seconds = {
        (ours, assisted.PLAIN): [4.0, 8.0, 4.0],
        (ours, assisted.DRAFTED): [2.0, 4.0, 2.0],
        (theirs, assisted.PLAIN): [6.0, 12.0, 6.0],
        (theirs, assisted.DRAFTED): [4.0, 8.0, 3.0],
    }
    record = assisted.describe("greedy", seconds, 0.01)
    assert record["speed"] == {ours: 2.0, theirs: 1.5}
    assert record["beside"] == {assisted.PLAIN: 1.5, assisted.DRAFTED: 2.0}
    slow = {**record, "mode": "sampled", "speed": {ours: 1.5, theirs: 2.0}}
    part = {"parameters": 1_000_000, "records": [record, slow]}
    gates = speculative.judge({"assisted": part})
    assert [(gate.value, gate.verdict) for gate in gates] == [(0.75, "FAIL"), (2.0, "pass")]
    assert gates[0].worst == "sampled"
    assert assisted.table(part)[-1].startswith("| sampled | transformers |")


def test_training_is_kept_in_a_file(tmp_path: Path) -> None:
    asked = []

    def texts() -> torch.Tensor:
        asked.append(1)
        return torch.randint(40, (8, 20))

    first, again = (load_or_train(TINY, tmp_path, "x", texts) for _ in range(2))
    assert len(asked) == 1
    assert first.known.equal(again.known)
    assert first.known.shape == first.unknown.shape == (4, 20)
    for name, parameter in again.network.state_dict().items():
        assert parameter.equal(first.network.state_dict()[name])
    load_or_train(TINY, tmp_path, "y", texts)
    assert len(asked) == 2


def test_plain_decoding_is_speculation_without_drafts() -> None:
    network = Network(TINY).eval()
    model = CachedNetwork(network, is_draft=False)
    prompts = torch.randint(40, (3, 5))
    params = [SamplingParams(seed=row, temperature=0.5 * row) for row in range(3)]
    plain = speculative.decode_plainly(model, prompts, 8, params)
    output = speculative_sample(model, prompts, params, drafter=model, gamma=0, max_new_tokens=8)
    assert plain.equal(output.sequences)


def test_both_normalisations_agree() -> None:
    logits = torch.randn(1, 9, 50) * 3
    rows = RowSampling([SamplingParams(temperature=0.8, top_k=20, top_p=0.9)], 50, logits.device)
    torch.testing.assert_close(rows.probabilities(logits), normalisation.loop_normalisation(logits, 0.8, 20, 0.9))


def test_a_case_is_described_and_judged() -> None:
    network = Network(TINY).eval()
    target, draft = CachedNetwork(network, is_draft=False), CachedNetwork(network, is_draft=True)
    prompts = torch.randint(40, (1, 5))
    outputs = [
        speculative_sample(target, prompts, drafter=draft, gamma=7, max_new_tokens=20, generator=_generator(seed))
        for seed in range(2)
    ]
    seconds = {"plain": [2.0, 4.0], "gamma": [1.0, 2.0], "adaptive": [2.0, 5.0]}
    record = speculative.describe_case(Case("x", True, 1.0, 1), seconds, outputs, StepCosts(0.1, 0.3, 1.5), 0.0)
    assert record["speed"] == 2.0
    assert record["speed_adaptive"] == 0.9
    assert record["speed_long"] is None
    assert record["model"] == pytest.approx((record["accepted_per_round"] + 1) / 3.1)
    assert record["model_with_verification"] == pytest.approx((record["accepted_per_round"] + 1) / 3.6)
    tokens = [19 / one.stats.target_passes for one in outputs]
    assert tokens == pytest.approx([float(one.stats.accepted.sum()) / one.stats.target_passes + 1 for one in outputs])
    assert record["speed_over_model"] == pytest.approx(sum(2.0 / (each / 3.1) for each in tokens) / 2)
    record |= {"acceptance": 0.95, "speed_over_model": 1.05, "speed_over_model_with_verification": 1.5}
    slow = {**record, "case": Case("slow", True, 1.0, 1)._asdict(), "speed": 1.5, "speed_over_model": 1.5 / 1.9}
    low = {**record, "acceptance": 0.5, "speed": 1.0, "speed_over_model": 1.0 / 1.2}
    gates = speculative.judge({"speed": {"records": [record, slow, low]}, "identity": {"differing": {"a": 0}}})
    assert [gate.value for gate in gates[:2]] == [1.5, pytest.approx(1 - 1.5 / 1.9)]
    assert gates[0].worst == "slow, batch 1"
    assert [gate.verdict for gate in gates] == ["FAIL", "FAIL", "FAIL", "FAIL", "pass"]


def test_what_is_disturbed_is_not_judged() -> None:
    """Also where the costs of a step were measured while others worked, and where rows were normalised."""
    case, seconds = Case("x", True, 1.0, 1), {"plain": [2.0], "gamma": [1.0], "adaptive": [1.0]}
    network = CachedNetwork(Network(TINY).eval(), is_draft=False)
    outputs = [speculative_sample(network, torch.randint(40, (1, 5)), drafter=network, gamma=7, max_new_tokens=9)]
    records = [speculative.describe_case(case, seconds, outputs, StepCosts(0.1, 0.3, 1.5, 0.2), 0.0)]
    times = {normalisation.JUDGED: {"one by one": 1.0, "at once": 1.0, "disturbed": 0.2}}
    gates = speculative.judge({"speed": {"records": records}, "normalisation": times})
    assert {gate.verdict for gate in gates} == {"disturbed"}


def test_gamma_14_is_timed_for_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NEW_TOKENS", 16), ("PROMPT_TOKENS", 3), ("REPEATS", 2)):
        monkeypatch.setattr(speculative, name, value)
    network = Network(TINY).eval()
    models = Trained(network, torch.randint(40, (4, 20)), torch.randint(40, (4, 20)), 0.0, (0.0, 0.0))
    target, draft = CachedNetwork(network, is_draft=False), CachedNetwork(network, is_draft=True)
    for batch_size in (1, 2):
        case = Case("x", True, 1.0, batch_size)
        record = speculative.measure_case(case, models, target, draft, StepCosts(0.1, 0.3, 1.5))
        assert set(record["seconds"]) == {"plain", "gamma", "adaptive", *(["long"] if batch_size == 1 else [])}
        assert (record["speed_long"] is None) == (batch_size > 1)
        assert len(record["acceptance_by_place"]) == speculative.GAMMA


def test_what_is_promised_of_one_row_alone_is_said_of_more() -> None:
    def record(batch_size: int, acceptance: float, speed: float, over: float) -> dict[str, Any]:
        case = Case("x", True, 1.0, batch_size)._asdict()
        return {"case": case, "acceptance": acceptance, "speed": speed, "speed_over_model": over}

    records = [record(1, 1.0, 2.5, 0.5), record(8, 0.99, 1.5, 0.9), record(4, 0.5, 0.6, 0.7)]
    assert speculative.beyond_one_row(records) == (
        "The first two are promised of one row only. Of 8 rows gamma 7 is 1.50x plain decoding at an acceptance of "
        "0.99, and of 4 it is up to 30% away from (accepted + 1) / (gamma c + 1)."
    )


def test_the_document_has_the_published_run(tmp_path: Path) -> None:
    published = json.loads(decoding_docs.PUBLISHED.read_text())
    text = decoding_docs.DOCUMENT.read_text()
    document, data = tmp_path / "decoding.md", tmp_path / "decoding_speed.json"
    document.write_text(text)
    decoding_docs.publish(published["speculative"], published["beam_search"], document, data)
    assert document.read_text() == text
    assert json.loads(data.read_text()) == published
    records = published["speculative"]["speed"]["records"]
    records[0]["speed_long"] = 2.75
    lines = decoding_docs.speculative_tables(published["speculative"])
    rows = [line for line in lines if line.startswith(("| known, ", "| others, "))]
    assert [row.endswith("| 2.75x |") for row in rows] == [True] + [False] * (len(records) - 1)


def test_a_run_of_some_parts_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_docs, "publish", lambda *runs: pytest.fail("published"))
    for module, found in ((speculative, {"requests": {}}), (beam_search, {})):
        monkeypatch.setattr(module, "OUTPUT", tmp_path / f"{module.__name__}.json")
        module.OUTPUT.write_text(json.dumps(found))
    monkeypatch.setattr("sys.argv", ["decoding_docs"])
    with pytest.raises(SystemExit, match="without speed, normalisation, identity, assisted"):
        decoding_docs.main()
    monkeypatch.setattr("sys.argv", ["decoding_docs", "--help"])
    with pytest.raises(SystemExit, match="0"):
        decoding_docs.main()


@pytest.mark.parametrize("asked", speculative_requests.ASKED)
def test_requests_get_the_same_with_drafts(asked: str) -> None:
    """Also where the draft is the target itself, of which every round reads the last token again."""
    network = Network(TINY).eval()
    target, draft = (CachedNetwork(network, is_draft=is_draft) for is_draft in (False, True))
    prompt = torch.randint(40, (1, 5), generator=_generator(1))
    for seed in range(2):
        params = SamplingParams(top_k=3, seed=seed, **speculative_requests.ASKED[asked])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(speculative_requests, "NEW_TOKENS", 30)
            plain = speculative_requests.decode_plainly(target, prompt, params)
            for drafter in (draft, target):
                drafted = speculative_requests.decode_with_drafts(target, drafter, prompt, params)
                assert drafted.tokens == plain.tokens
                assert drafted.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
                assert len(drafted.tokens) == drafted.accepted + drafted.rounds + 1 == 30
    assert len(plain.logprobs) == (30 if "logprobs" in asked else 0)
    assert drafted.accepted > 0


def test_what_requests_ask_for_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NEW_TOKENS", 9), ("PROMPT_TOKENS", 3), ("REPEATS", 2)):
        monkeypatch.setattr(speculative_requests, name, value)
    network = Network(TINY).eval()
    target, draft = (CachedNetwork(network, is_draft=is_draft) for is_draft in (False, True))
    part = speculative_requests.measure(target, draft, {"known": torch.randint(40, (4, 20))})
    assert json.loads(json.dumps(part)) == part
    assert [record["asked"] for record in part["records"]] == list(speculative_requests.ASKED)
    assert all(min(record["plain"], record["drafted"], record["speed"]) > 0 for record in part["records"])
    lines = speculative_requests.table(part)
    assert lines[-1].startswith("| known | penalties and logprobs | ")
    published = json.loads(decoding_docs.PUBLISHED.read_text())["speculative"]
    assert lines[-1] in decoding_docs.speculative_tables(published | {"requests": part})


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_case_runs_with_each_gamma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "NEW_TOKENS", 20)
    model = CachedNetwork(Network(TINY).eval(), is_draft=False)
    run = speculative._speculate(model, model, torch.randint(40, (1, 3)), [SamplingParams(seed=1)])
    for gamma in (2, AdaptiveGamma()):
        assert run(gamma).lengths.tolist() == [20]
