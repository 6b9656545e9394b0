"""What requests were answered, in outputs.jsonl where that is asked for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import sarathi.executor.local
from sarathi.config import BenchmarkConfig, parse_args
from tests.fake_local import FakeLoader, FakeTokenizer
from tests.instrumented import OUTPUTS, TINY_LOAD, lines, replayed


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeLoader:
    loader = FakeLoader()
    monkeypatch.setattr(sarathi.executor.local, "build_local", loader)
    return loader


def fake_config(*flags: str) -> BenchmarkConfig:
    return parse_args([*TINY_LOAD, "--executor_config_type=LOCAL", "--model_config_model=smollm2", *flags])


def test_outputs_of_a_run(fake: FakeLoader, tmp_path: Path) -> None:
    run = replayed(fake_config(OUTPUTS), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["outputs.jsonl"]
    written = lines(tmp_path / "outputs.jsonl")
    assert list(written) == [request.request_id for request in run.rounds.ended] and len(written) == 8
    for request in run.rounds.ended:
        assert written[request.request_id] == {
            "request_id": request.request_id,
            "prompt": FakeTokenizer().decode(list(request.prompt_token_ids), False),
            "num_prompt_tokens": 40,
            "output_token_ids": [7] * 6,
            "text": chr(7) * 6,
            "finish_reason": "length",
        }


def test_outputs_without_a_tokenizer_and_of_refused_requests(fake: FakeLoader, tmp_path: Path) -> None:
    fake.tokenizer = None
    replayed(fake_config(OUTPUTS, "--model_config_max_model_len=30"), tmp_path)
    written = lines(tmp_path / "outputs.jsonl")
    assert len(written) == 8
    for line in written.values():
        assert (line["prompt"], line["text"], line["output_token_ids"]) == (None, None, [])
        assert line["finish_reason"] == "ignored"


def test_simulated_rounds_have_no_outputs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert replayed(parse_args([*TINY_LOAD, OUTPUTS]), tmp_path).summary == {}
    assert f"{OUTPUTS} has no effect: simulated rounds make no tokens" in caplog.messages
    assert list(tmp_path.iterdir()) == []
