"""Each command of the benchmarks, on small data: what it times is valid, and it keeps and prints what it found."""

from __future__ import annotations

import importlib
import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ascend_sample.bench.timing import repeat
from ascend_sample.decoding import DecoderConfig
from ascend_sample.sampling import score
from benchmarks import __main__ as whole
from benchmarks import (
    beam_search,
    cases,
    command,
    decoder_layer,
    distributions,
    filtering,
    llama_cpp,
    measuring,
    npu_call,
    sampler,
    speculative,
    speculative_requests,
    step_rows,
    value_ranges,
    verify_drafts,
)
from benchmarks import score as scores
from benchmarks.cases import Cell
from benchmarks.draft_and_target import Network, NetworkConfig, Trained
from benchmarks.native import ROOT
from tests.support.user_process import run_as_user

Patch = pytest.MonkeyPatch
TINY = NetworkConfig(
    **{"vocab_size": 40, "width": 16, "layers": 3, "draft_layers": 1, "heads": 2, "feed_forward_width": 24},
    context_size=64,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Where runs are kept; rows are short, and like a language model's without training one."""
    falling = 12 - 1.5 * torch.arange(1, 4097).log()
    rows = falling[torch.randperm(4096)] + torch.randn(64, 4096)
    monkeypatch.setattr(distributions, "language_model_rows", lambda: rows)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(step_rows, "COLD_BYTES", 200_000)
    for module in (filtering, llama_cpp, value_ranges, verify_drafts):
        monkeypatch.setattr(module, "VOCAB_SIZE", 300)
    for module in (beam_search, decoder_layer, sampler, speculative):
        monkeypatch.setattr(module, "OUTPUT", tmp_path / "run.json")
    return tmp_path


def start(monkeypatch: Patch, main: Any, *words: str) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr("sys.argv", ["benchmark", *words])
    try:
        assert not main()
    finally:
        torch.set_num_threads(threads)


def test_the_kernel_beside_its_peers(folder: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    """The ids of the contestants agree, or the run would end."""
    monkeypatch.setattr(cases, "COLD_BYTES", 1e5)
    monkeypatch.setattr(measuring, "SECONDS_PER_CONTESTANT", 0.002)
    usual = Cell(cases.GRID, cases.TOP_K_AND_P, 5000, 4, "bfloat16", cases.EVERYTHING, is_cold=True)
    plan = [
        *(replace(usual, case=case) for case in (cases.TOP_K_AND_P, cases.TOP_P, cases.NO_FILTER)),
        Cell(cases.CALL, cases.TOP_K_AND_P, 5000, 1, "bfloat16", cases.CALLS),
        replace(cases.plan()[-1], vocab_size=5000, batch_size=2),
    ]
    monkeypatch.setattr(cases, "plan", lambda: plan)
    start(monkeypatch, lambda: whole.main(["--output", str(folder), "--check"]))  # nothing is promised of these shapes
    run = json.loads((folder / "performance.json").read_text())
    assert [set(record["results"]) for record in run["records"]] == [set(cell.contestants) for cell in plan]
    assert all(result["median"] > 0 for record in run["records"] for result in record["results"].values())
    assert "promises: 0 pass, 0 FAIL" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="must be part of a cell's description, got 'nothing'"):
        whole.main(["--only", "nothing"])


LONG = (pytest.param(name, marks=pytest.mark.long) for name in ("filtering", "llama_cpp"))
"""They time each sampler for seconds."""


@pytest.mark.parametrize("name", ["kept_sets", "score", "value_ranges", "verify_drafts", *LONG])
def test_a_part_beside_its_peers(
    name: str, folder: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    chains = (llama_cpp.LLAMA, llama_cpp.SAMPLERS_ALONE)
    monkeypatch.setattr(llama_cpp, "chain_times", lambda *given: dict.fromkeys(chains, repeat(random.random)))
    run = partial(module.run, places=8, vocab_size=5000) if name == "score" else module.run
    start(
        monkeypatch,
        lambda: command.measure_and_show(name, module.__doc__, (1.0, ""), run, module.show),
        "--seconds",
        "0.01",
    )
    found = json.loads((folder / "build" / "performance" / f"{name}.json").read_text())
    records = found.get("records", [found])
    assert all(result["median"] > 0 for record in records for result in record["results"].values())
    assert all(gate["value"] is not None and gate["name"] in capsys.readouterr().out for gate in found["gates"][:1])


def test_steps_of_the_sampler(monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each cell, those that are timed draw ids of the vocabulary."""
    cells = tuple(replace(cell, vocab_size=5000) for cell in sampler.CELLS)
    for cell in cells:
        for name, call in cell.make(cell).items():
            if name != step_rows.READ:
                result = call()
                ids = result if isinstance(result, torch.Tensor) else result.token_ids
                assert ids.shape == (cell.batch_size,)
                assert torch.all((ids >= 0) & (ids < 5000))
    monkeypatch.setattr(sampler, "CELLS", cells[:1])
    monkeypatch.setattr(sampler.step_launches, "run", dict)
    start(monkeypatch, sampler.main, "--seconds", "0.01")
    assert cells[0].describe()[:10] in capsys.readouterr().out


@pytest.mark.long
def test_speculative_sampling(folder: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    texts = torch.randint(40, (4, 20))
    models = Trained(Network(TINY).eval(), texts, texts, 0.0, (0.0, 0.0))
    monkeypatch.setattr(speculative, "trained", lambda: models)
    monkeypatch.setattr(speculative, "CASES", [replace_batch(size) for size in (1, 2)])
    for module in (speculative, speculative_requests):
        for name, value in (("NEW_TOKENS", 8), ("PROMPT_TOKENS", 3), ("REPEATS", 1)):
            monkeypatch.setattr(module, name, value)
    start(monkeypatch, speculative.main, "--part", "speed", "--part", "requests")
    found = json.loads((folder / "run.json").read_text())
    assert [record["speed_long"] is None for record in found["speed"]["records"]] == [False, True]
    assert [record["asked"] for record in found["requests"]["records"][:4]] == list(speculative_requests.ASKED)
    assert "acceptance" in capsys.readouterr().out


def replace_batch(batch_size: int) -> speculative.Case:
    return speculative.CASES[1]._replace(batch_size=batch_size)


def test_beam_search(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(beam_search, "SIZES", {"base": beam_search.SIZES["base"]})
    start(monkeypatch, beam_search.main, *["--batch", "2", "--beams", "2", "--vocab-size", "40", "--tokens", "6"])
    records = json.loads((folder / "run.json").read_text())["records"]
    assert [record["steps"] for record in records] == [4, 4]
    assert all(0 < record["search_share"] <= record["share"] < 1 for record in records)


def test_layers_of_a_decoder(monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    config = DecoderConfig(vocab_size=11, hidden_size=8, heads=2, layers=2)
    small_cases = (decoder_layer.Case(2, 1), decoder_layer.Case(2, 3))
    for name, value in {"CONFIG": config, "STEPS": 5, "MEMORY": 3, "CASES": small_cases}.items():
        monkeypatch.setattr(decoder_layer, name, value)
    start(monkeypatch, decoder_layer.main, "--repeats", "1")
    assert "| 2 x 3, rows reordered at each step |" in capsys.readouterr().out


def test_a_call_on_an_npu(counting: None, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    start(monkeypatch, npu_call.main, *["--batch-size", "2", "--vocab-size", "500", "--rounds", "2", "--repeats", "1"])
    assert "EMULATED by hostcann" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("two_checkouts", str(ROOT), str(ROOT), "--rounds", "1", "--pairs", "1", "--only", "a call, numbers"),
        ("vocabulary_parallel", "--repeats", "1"),
    ],
    ids=lambda words: words[0],
)
def test_in_processes_of_their_own(words: tuple[str, ...]) -> None:
    assert run_as_user("-m", f"benchmarks.{words[0]}", *words[1:])


def test_peers_do_what_they_are_compared_for() -> None:
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(1)) * 2
    for params in filtering.CELLS.values():
        calls = filtering.processors(params, logits)
        torch.testing.assert_close(calls[filtering.OURS](), calls[filtering.THEIRS](), rtol=1e-6, atol=0)
    token_ids = torch.arange(4)
    found, (given, best, ids) = score(logits, token_ids, scores.BEST), scores.peer(logits, token_ids)
    torch.testing.assert_close(found.logprobs, given.squeeze(1), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.best_logprobs, best, atol=1e-5, rtol=0)
    assert torch.equal(found.best_ids, ids)
