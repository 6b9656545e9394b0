"""`make sweep` in its reduced size; lengths drawn from quantiles; best, Pareto-optimal and trend on known numbers."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks import sweep, sweep_workloads
from benchmarks.sweep_verdicts import METRICS, best, pareto_optimal, trend
from benchmarks.sweep_workloads import TRACE_FILES, draw_lengths, length_tables, rank_correlation, read_lengths
from predictor.shipped import shipped_file
from sarathi.errors import InputError

TRACES = tuple(TRACE_FILES)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a quick run, with the shipped predictor."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "predictor").mkdir()
    shutil.copy(shipped_file(sweep.DEVICE, "Qwen/Qwen3-8B"), folder / "predictor" / f"{sweep.DEVICE}.npz")
    sweep.main(["--quick", "--results", str(folder), "--processes", "1"])
    return folder / "sim-quick"


def tables(results: Path) -> dict[str, dict]:
    report = json.loads((results / "sweep.json").read_text())
    return {block["heading"]: block for block in report["blocks"] if block["kind"] == "table"}


def test_every_table_and_figure_is_there(results: Path) -> None:
    report = json.loads((results / "sweep.json").read_text())
    figures = {block["file"] for block in report["blocks"] if block["kind"] == "figure"}
    assert len(figures) == 7 and all((results / name).stat().st_size > 10_000 for name in figures)
    headings = [metric.heading for metric in METRICS.values()]
    found = tables(results)
    assert found["code: 0.8 and 1.4 times capacity"]["columns"] == ["load", "scheduler", *headings]
    assert len(found["code: 0.8 and 1.4 times capacity"]["rows"]) == 8
    assert found["Who is best"]["columns"] == ["workload", "load", *headings]
    assert [row[0] for row in found["Pareto-optimal at 1.4 times capacity"]["rows"]] == ["short", "code"]
    assert all(len(table["columns"]) <= 14 and len(table["rows"]) <= 40 for table in found.values())
    assert len(report["headlines"]) == 2 and "ITL P99" in report["headlines"][1]


def test_runs_and_means_agree(results: Path) -> None:
    with (results / "sweep-runs.csv").open(newline="") as file:
        runs = list(csv.DictReader(file))
    with (results / "sweep-means.csv").open(newline="") as file:
        means = list(csv.DictReader(file))
    assert (len(runs), len(means)) == (2 * 2 * 4 * 2, 2 * 2 * 4)  # workloads, loads, schedulers, seeds
    values = [float(run["mean_e2e_s"]) for run in runs[:2]]
    assert float(means[0]["mean_e2e_s"]) == pytest.approx(np.mean(values), rel=1e-5)
    assert float(means[0]["mean_e2e_s_half"]) == pytest.approx(12.706 * abs(values[0] - values[1]) / 2, rel=1e-3)
    assert {float(run["num_finished"]) for run in runs if run["workload"] == "code"} == {24}


def test_rates_are_shares_of_the_measured_capacity(results: Path) -> None:
    with (results / "sweep-runs.csv").open(newline="") as file:
        rates = {(row["workload"], float(row["load"])): float(row["qps"]) for row in csv.DictReader(file)}
    for workload in ("short", "code"):
        assert rates[workload, 1.4] / rates[workload, 0.8] == pytest.approx(1.4 / 0.8, rel=1e-3)


def test_a_second_run_writes_the_same_bytes(results: Path) -> None:
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    sweep.main(["--quick", "--results", str(results.parent), "--processes", "1"])
    assert {path.name: path.read_bytes() for path in results.iterdir()} == before


def test_a_missing_predictor_and_a_missing_trace_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"make results/predictor/{sweep.DEVICE}.npz"):
        sweep.main(["--quick", "--results", str(tmp_path)])
    with pytest.raises(InputError, match=r"--traces: .*splitwise_code\.csv"):
        sweep_workloads.trace_path("code", tmp_path, tmp_path)


@pytest.mark.parametrize("name", TRACES)
def test_drawn_lengths_have_the_tables_quantiles(name: str) -> None:
    table = length_tables()[name]
    drawn = draw_lengths(table, 20_000, seed=0)
    for column, key in enumerate(("prompt_tokens", "output_tokens")):
        for level, quantile in zip(table["levels"], table[key], strict=True):
            if 0.05 <= level <= 0.95:  # of the sample's quantile, within four standard errors of its level
                slack = 4 * (level * (1 - level) / len(drawn)) ** 0.5
                assert np.mean(drawn[:, column] < quantile - 0.5) <= level + slack
                assert np.mean(drawn[:, column] <= quantile + 0.5) >= level - slack
    assert rank_correlation(drawn) == pytest.approx(table["rank_correlation"], abs=0.03)
    assert (drawn == draw_lengths(table, 20_000, seed=0)).all() and drawn.min() >= 1


def test_the_copula_gives_the_rank_correlation() -> None:
    table = {**length_tables()["arxiv"], "rank_correlation": 0.7}
    assert rank_correlation(draw_lengths(table, 20_000, seed=1)) == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize("name", TRACES)
def test_the_table_is_the_traces(name: str, shared: Path) -> None:
    lengths = read_lengths(shared / "traces" / TRACE_FILES[name])
    table = length_tables()[name]
    assert table["requests"] == len(lengths)
    assert {**sweep_workloads.tabulate(lengths)}.items() <= table.items()
    drawn = draw_lengths(table, len(lengths), seed=2)
    cap = sweep_workloads.MAX_OUTPUT_TOKENS
    assert np.minimum(drawn, [10**9, cap]).mean(axis=0) == pytest.approx(
        np.minimum(lengths, [10**9, cap]).mean(axis=0), rel=0.05
    )


def test_tables_are_made_from_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_workloads, "TABLES_FILE", tmp_path / "tables.json")
    trace = sweep_workloads.write_lengths(tmp_path / "trace.csv", np.array([[10 * i, 100 - i] for i in range(101)]))
    sweep_workloads.main([f"code={trace}", f"arxiv={trace}"])
    table = json.loads((tmp_path / "tables.json").read_text())["arxiv"]
    assert table["prompt_tokens"][table["levels"].index(0.25)] == 250.0
    assert table["output_tokens"][table["levels"].index(0.25)] == 25.0
    assert table["rank_correlation"] == -1.0
    with pytest.raises(SystemExit, match="usage"):
        sweep_workloads.main(["code=x.csv"])


def test_rank_correlation_shares_ranks_among_equals() -> None:
    pairs = np.array([[1, 1], [2, 1], [3, 2], [4, 3]])
    assert rank_correlation(pairs) == pytest.approx(0.948683, abs=1e-6)  # ranks 1 2 3 4 and 1.5 1.5 3 4


def test_pareto_optimal() -> None:
    points = {"a": (1, 5), "b": (2, 3), "c": (2, 4), "d": (3, 3), "e": (4, 1), "twin of b": (2, 3)}
    assert pareto_optimal(points) == ["a", "b", "twin of b", "e"]
    assert pareto_optimal({"only": (1, 1)}) == ["only"]


def test_best_names_what_seeds_do_not_tell_apart() -> None:
    values = {"slow": [10.0, 20.0, 30.0], "fast": [1.0, 11.0, 21.0], "alike": [0.5, 12.0, 22.0]}
    assert best(values) == ("fast", ["alike"])  # 'slow' is 9 s slower with every seed, however seeds differ


def test_trend_tolerates_steps_within_their_interval() -> None:
    low, high = [1.0, 1.1, 0.9], [5.0, 5.1, 4.9]
    assert trend([low, [0.9, 1.2, 0.8], high], 1, "rises") == "rises"
    assert trend([high, low], -1, "falls") == "falls"
    assert trend([low, [0.5, 0.6, 0.4], high], 1, "rises") == "not everywhere"
    assert trend([low, [1.0, 0.9, 1.2]], 1, "rises") == "not told"
