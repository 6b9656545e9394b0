"""Collecting: every run's rounds and settings in one file, the same each time, and nothing foreign among them."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import predictor.collect
from predictor import dataset, grids
from predictor.collect import collect, main
from predictor.grids import Job, Pool, default_grid, length_pool, paper_grid
from predictor.rounds_file import SETTING_COLUMNS, gather
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.config import (
    BenchmarkConfig,
    ChunkedSchedulerConfig,
    CustomSchedulerConfig,
    SarathiSchedulerConfig,
    config_from_args,
)
from sarathi.metrics.records import ROUND_COLUMNS

POOL = Pool([(20 + 7 * i % 90, 5 + i % 20) for i in range(60)], [(300 + i, 10) for i in range(60)], ["a pool"])
TINY = ("--simulated_executor_config_device", "a100_80gb", "--simulated_executor_config_jitter", "0.01")


def tiny_grid(config: BenchmarkConfig, pool: Pool) -> list[Job]:
    """A static and a random run of few requests each."""
    workload = grids._workload("tiny", pool.first_turns + pool.histories[:10], 0.01)
    schedulers = (SarathiSchedulerConfig(chunk_size=256, max_num_seqs=16), grids._random_chunks(16, 1))
    return [Job(replace(config, scheduler_config=scheduler), workload) for scheduler in schedulers]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command with the tiny grid and no ShareGPT file."""
    monkeypatch.setattr(predictor.collect, "length_pool", lambda config: POOL)
    monkeypatch.setitem(grids.GRIDS, "default", tiny_grid)


def config_of(*argv: str) -> BenchmarkConfig:
    return config_from_args([*TINY, *argv], BenchmarkConfig, "test")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def do_run(folder: Path, *argv: str) -> Path:
    requests = [RequestSpec(str(i), 0.01 * i, 100, 8) for i in range(10)]
    result = run_benchmark(replace(config_of(*argv), output_dir=str(folder)), Workload("mine", requests))
    assert result.directory is not None
    return result.directory


@pytest.mark.usefixtures("small")
def test_a_grid_becomes_one_file(tmp_path: Path) -> None:
    output = tmp_path / "out" / "rounds.csv"
    num_rounds = collect(config_of(), output, processes=1)
    rows = rows_of(output)
    assert len(rows) == num_rounds > 50
    assert list(rows[0]) == ["run", *ROUND_COLUMNS, *SETTING_COLUMNS]
    assert {row["run"] for row in rows} == {"0", "1"}
    assert {(row["device"], row["jitter"], row["simulated"]) for row in rows} == {("a100_80gb", "0.01", "True")}
    assert {row["scheduler"] for row in rows} == {"SARATHI", "predictor.random_chunks.RandomChunksScheduler"}
    data = dataset.load(output)
    assert len(data) == num_rounds and data.source.device == "a100_80gb"
    for run in ("0", "1"):
        steps = [int(row["step_id"]) for row in rows if row["run"] == run]
        assert steps == list(range(len(steps)))
    assert {path.suffix for path in output.parent.iterdir()} <= {".csv", ".parquet"}


@pytest.mark.usefixtures("small")
def test_the_same_settings_give_the_same_file_however_many_processes(tmp_path: Path) -> None:
    for name, processes in (("a", 1), ("b", 2)):
        collect(config_of(), tmp_path / f"{name}.csv", processes=processes)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    collect(config_of("--seed", "7"), tmp_path / "c.csv", processes=1)
    assert (tmp_path / "a.csv").read_bytes() != (tmp_path / "c.csv").read_bytes()


@pytest.mark.usefixtures("small")
def test_parquet_holds_the_same_rounds(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    collect(config_of(), tmp_path / "rounds.parquet", processes=1)
    from_csv, from_parquet = (dataset.load(tmp_path / f"rounds.{kind}") for kind in ("csv", "parquet"))
    assert np.array_equal(from_csv.raw, from_parquet.raw) and np.array_equal(from_csv.times, from_parquet.times)
    assert from_csv.source == from_parquet.source


@pytest.mark.usefixtures("small")
def test_without_pyarrow_a_line_says_that_there_is_csv_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rounds.parquet").write_text("of an earlier call")
    assert main(["--output", str(tmp_path / "rounds.parquet"), "--processes", "1", *TINY]) == 0
    out = capsys.readouterr().out
    assert "CSV alone, no Parquet" in out and "SIMULATED DEVICE" in out
    assert [path.name for path in tmp_path.iterdir()] == ["rounds.csv"]
    (tmp_path / "x.parquet").touch()
    with pytest.raises(ValueError, match="needs pyarrow"):
        dataset.load(tmp_path / "x.parquet")


def test_random_chunks_show_what_a_static_budget_does_not(tmp_path: Path) -> None:
    """Small chunks while prompts wait, beside decodes, and several of them in a round."""
    pool = Pool([(200, 40)] * 80, [], [])
    config = replace(config_of(), output_dir=str(tmp_path))
    static, random = (
        rows_of(run_benchmark(job.config, job.workload).directory / "rounds.csv") for job in tiny_grid(config, pool)
    )

    def num_crumbs(rows: list[dict[str, str]]) -> int:
        return sum(
            int(row["num_prefills"]) >= 2
            and int(row["batch_num_prefill_tokens"]) <= 8 * int(row["num_prefills"])
            and int(row["batch_num_decode_tokens"]) > 0
            for row in rows
        )

    assert num_crumbs(static) == 0 and num_crumbs(random) >= 5


def test_past_runs_become_the_same_kind_of_file(tmp_path: Path) -> None:
    directories = [do_run(tmp_path / "runs"), do_run(tmp_path / "runs", "--seed", "5")]
    output = tmp_path / "rounds.csv"
    assert main(["--output", str(output), "--from-runs", *map(str, directories)]) == 0
    rows = rows_of(output)
    assert [row["step_id"] for row in rows if row["run"] == "1"] == [
        row["step_id"] for row in rows_of(directories[1] / "rounds.csv")
    ]
    assert {(row["workload"], row["seed"]) for row in rows} == {("mine", "42"), ("mine", "5")}
    assert len(dataset.load(output)) == len(rows)


def test_an_older_run_may_lack_a_column_that_is_no_feature(tmp_path: Path) -> None:
    directory = do_run(tmp_path / "runs")
    path = directory / "rounds.csv"
    rows = rows_of(path)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != "num_candidates"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    gather([directory], tmp_path / "rounds.csv")
    gathered = rows_of(tmp_path / "rounds.csv")
    assert {row["num_candidates"] for row in gathered} == {""}
    assert [row["batch_size"] for row in gathered] == [row["batch_size"] for row in rows]
    path.write_text(path.read_text().replace("batch_size", "size"))
    with pytest.raises(ValueError, match=r"rounds\.csv:1: column\(s\) batch_size are missing"):
        gather([directory], tmp_path / "rounds.csv")


def test_different_devices_do_not_go_into_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directories = [do_run(tmp_path / "runs"), do_run(tmp_path / "runs", "--simulated_executor_config_device", "h100")]
    output = tmp_path / "out" / "rounds.csv"
    assert main(["--output", str(output), "--from-runs", *map(str, directories)]) == 2
    error = capsys.readouterr().err
    assert "device: a100_80gb against h100" in error and all(str(directory) in error for directory in directories)
    assert list(output.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--output", "/dev/null/rounds.csv"],
            "--output: /dev/null/rounds.csv cannot be written (its folder is a file)",
        ),
        (["--output", "rounds.json"], "--output: rounds.json is not allowed"),
        (["--processes", "0"], "--processes: 0 is not allowed"),
        (["--scheduler_config_type", "AGING"], "--scheduler_config...: not allowed here"),
        (["--sharegpt_request_generator_config_num_requests", "5"], "--request_generator_config...: not allowed here"),
        (["--time_limit", "5"], "--time_limit...: not allowed here"),
        (["--simulated_executor_config_device", "abacus"], "--simulated_executor_config_device"),
        (["--no_such_flag", "1"], "--no_such_flag"),
        (["--from-runs", "no/such/run"], "no/such/run: no finished run"),
        (["--from-runs", "x", "--seed", "1"], "--from-runs: --seed has no effect with it"),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_bad_argument_is_one_line_that_names_it(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1
    assert not list(tmp_path.rglob("*.csv*"))


def test_the_default_grid_varies_load_mixture_and_concurrency() -> None:
    jobs = default_grid(BenchmarkConfig(), POOL)
    schedulers = [cast(ChunkedSchedulerConfig, job.config.scheduler_config) for job in jobs]
    assert {scheduler.max_num_seqs for scheduler in schedulers} == {8, 32, 128, 256}
    assert {scheduler.chunk_size for scheduler in schedulers} == {256, 512, 1024}
    assert len({job.workload.name for job in jobs}) == 18
    seeds = [scheduler.params["seed"] for scheduler in schedulers if isinstance(scheduler, CustomSchedulerConfig)]
    assert len(seeds) == len(set(seeds)) == 2 * 18 * 4
    assert len({job.config.seed for job in jobs}) == len(jobs)


def test_the_papers_grid_is_its_profiling() -> None:
    pool = Pool([(i + 1, 5) for i in range(3000)], [], [])
    first, second = paper_grid(BenchmarkConfig(), pool)
    assert [len(job.workload.requests) for job in (first, second)] == [2000, 1000]
    assert [job.workload.requests[-1].arrival_time for job in (first, second)] == [0.0, pytest.approx(99.9)]
    for job in (first, second):
        scheduler = cast(ChunkedSchedulerConfig, job.config.scheduler_config)
        assert (scheduler.chunk_size, scheduler.max_num_seqs) == (256, 32)
        assert job.config.model_config.max_model_len == 1024
    assert second.workload.requests[0].num_prompt_tokens == 2001


def test_lengths_are_made_up_where_sharegpt_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids.importlib.util, "find_spec", lambda name: None)
    pool, again = (length_pool(BenchmarkConfig(seed=1)) for _ in range(2))
    assert "not installed" in pool.notes[0] and len(pool.notes) == 1
    assert len(pool.first_turns) == 3000 and pool == again
    assert np.median([prompt for prompt, _ in pool.histories]) > 10 * np.median([p for p, _ in pool.first_turns])


def test_an_output_below_a_file_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        gather([], tmp_path / "file" / "rounds.csv")


def test_a_row_cut_short_names_its_line(tmp_path: Path) -> None:
    directory = do_run(tmp_path / "runs")
    path = directory / "rounds.csv"
    path.write_text(path.read_text().rstrip().rpartition(",")[0] + "\n")
    with pytest.raises(ValueError, match=r"rounds\.csv:\d+: \d+ cells are not allowed"):
        gather([directory], tmp_path / "rounds.csv")
