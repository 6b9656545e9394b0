"""Profiles of runs: of Python's functions where rounds are simulated, of torch's operators where a model runs."""

from __future__ import annotations

import gzip
import json
import logging
import pstats
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sarathi.benchmark.profiling as profiling
from sarathi.benchmark.build import build_workload, requests_of
from sarathi.benchmark.profiling import profiled
from sarathi.benchmark.progress import progress_bar
from sarathi.benchmark.system import build_system
from sarathi.clock import WallClock
from sarathi.config import BenchmarkConfig, parse_args
from sarathi.core.plan import SchedulerOutput
from sarathi.engine.engine import Engine, replay
from tests.instrumented import TINY_LOAD, Rounds, local, write_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return write_models(tmp_path_factory.mktemp("models"))


def profiled_run(config: BenchmarkConfig, directory: Path, at_round: Callable[[int], None] = lambda count: None) -> int:
    system = build_system(config)
    clock = system.clock if system.simulated else WallClock()
    engine = Engine(system.scheduler, system.executor, clock, Rounds())
    count = 0
    with profiled(directory, system.simulated) as after_round:

        def on_round(output: SchedulerOutput) -> None:
            nonlocal count
            after_round()
            count += 1
            at_round(count)

        replay([engine], requests_of(build_workload(config, system), config.slo_config), on_round=on_round)
    return count


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO):
        yield


def test_profile_of_a_simulated_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    num_rounds = profiled_run(parse_args([*TINY_LOAD]), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["profile.pstats"]
    stats = pstats.Stats(str(tmp_path / "profile.pstats")).get_stats_profile().func_profiles
    assert stats["stage_times"].ncalls == str(num_rounds)
    assert f"python -m pstats {tmp_path / 'profile.pstats'}" in caplog.messages[-1]


def test_profile_of_a_model_is_of_its_first_rounds(models, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(profiling, "PROFILED_ROUNDS", 3)
    assert profiled_run(local(models, "qwen3"), tmp_path) > 5
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json.gz"]
    with gzip.open(tmp_path / "profile.json.gz") as file:
        events = json.load(file)["traceEvents"]
    num_embeddings = sum(event["name"] == "aten::embedding" for event in events)
    assert num_embeddings == 3, "one a round"
    assert "of the first 3 rounds; open it in ui.perfetto.dev" in caplog.messages[-1]


@pytest.mark.parametrize("simulated", [True, False])
def test_a_run_that_breaks_off_leaves_no_profile(simulated, models, tmp_path) -> None:
    def interrupt(count: int) -> None:
        if count == 2:
            raise KeyboardInterrupt

    config = parse_args([*TINY_LOAD]) if simulated else local(models, "qwen3")
    with pytest.raises(KeyboardInterrupt):
        profiled_run(config, tmp_path, interrupt)
    assert list(tmp_path.iterdir()) == []
    profiled_run(parse_args([*TINY_LOAD]), tmp_path)  # no profiler is left running


def test_what_is_logged_while_a_bar_is_drawn_has_its_own_line(capsys) -> None:
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    try:
        with progress_bar(10, "requests", "req") as on_progress:
            on_progress(3)
            logging.getLogger("tests").warning("a profile was written")
            on_progress(10)
    finally:
        logging.getLogger().removeHandler(handler)
    told = [line.rpartition("\r")[2] for line in capsys.readouterr().err.split("\n")]
    assert "a profile was written" in told and told[-2].startswith("requests: 100%")
