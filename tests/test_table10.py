"""Table 10: what is counted of rounds, distances and verdicts exactly; and a reduced run's structure."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from benchmarks import table10
from benchmarks.harness.cases import Case, Workload
from benchmarks.harness.options import Options
from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs
from benchmarks.harness.statistics import Mean, Verdict
from benchmarks.table10 import add_claims, name_readings
from benchmarks.table10_distance import PAPER, distinct, gap, judged, retimed
from benchmarks.table10_readings import (
    AS_PRINTED,
    DEVICE,
    LATENCIES,
    READINGS,
    Reading,
    cases_of,
    latency_rows,
    round_figures,
)
from benchmarks.table10_targets import where_it_matters
from predictor.model import Predictor
from predictor.shipped import shipped_file
from sarathi.errors import InputError


def lend_predictors(folder: Path) -> None:
    """The shipped predictor where make leaves those that it trains, for both engine profiles."""
    folder.mkdir()
    model = Predictor.load(shipped_file(DEVICE, "Qwen/Qwen3-8B"))
    model.save(folder / f"{DEVICE}.npz")
    model.info = replace(model.info, source=replace(model.info.source, engine_profile="sarathi_2024"))
    model.save(folder / f"{DEVICE}--sarathi_2024.npz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reduced run leaves."""
    results = tmp_path_factory.mktemp("results")
    lend_predictors(results / "predictor")
    table10.main(["--quick", "--results", str(results), "--processes", "1"])
    return results / "sim-quick"


def test_a_reduced_run_writes_report_figure_and_runs(folder: Path) -> None:
    report = json.loads((folder / "table10.json").read_text())
    tables = {block["heading"]: block for block in report["blocks"] if block["kind"] == "table"}
    assert {len(row) == len(table["columns"]) for table in tables.values() for row in table["rows"]} == {True}
    assert {len(table["rows"]) <= 40 and len(table["columns"]) <= 14 for table in tables.values()} == {True}
    assert [row[0] for row in tables["The paper's rows beside ours"]["rows"]] == list(PAPER)
    assert "four senses" in tables["Readings of the counters, with APC"]["note"]
    assert len(report["headlines"]) == 2
    verdicts = tables["Verdict"]["rows"]
    claims: dict[str, list[str]] = {}
    for reading, claim, *_, verdict in verdicts:
        claims.setdefault(reading, []).append(claim)
        assert verdict in get_args(Verdict)
    assert set(claims) >= {"closest", "as printed", "as scripted"}
    assert all(of == claims["closest"] and len(of) == 10 for of in claims.values())
    assert "ITL P99 ms" in tables["Every reading"]["columns"]
    assert (folder / "table10-targets.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "table10.md").read_text().startswith("## Table 10")


def test_apc_makes_fewer_and_larger_prefills_below_the_decode_only_round(folder: Path) -> None:
    """For every seed, profile and kind of arrivals: the one direction that cannot be otherwise."""
    with open(folder / "table10-runs.csv", encoding="utf-8", newline="") as file:
        runs = list(csv.DictReader(file))
    below = [row for row in runs if row["target_ms"] == "10.0"]
    off, on = ([row for row in below if row["scheduler"] == name] for name in ("LPRS", "LPRS_APC"))
    assert len(off) == len(on) == 2 * sum(reading.target_ms == 10 for reading in READINGS)
    for a, b in zip(off, on, strict=True):
        assert float(a["avg_scheduled_prefill_seqs"]) > 2 * float(b["avg_scheduled_prefill_seqs"])
        assert float(a["chunk_of_accepted"]) < 2 < 10 < float(b["chunk_of_accepted"])
        assert a["blocked_by_min_effective_chunk"] == "0" < b["blocked_by_min_effective_chunk"]


def test_rounds_are_counted_by_what_they_left_waiting() -> None:
    columns = {
        "num_prefills": [2, 0, 0, 1],
        "batch_num_prefill_tokens": [48, 0, 0, 8],
        "batch_num_decode_tokens": [0, 32, 31, 31],
        "batch_execution_time": [0.04, 0.02, 0.01, 0.03],
        "num_waiting": [5, 5, 0, 5],
        "num_running": [2, 32, 31, 31],
        "prefill_cap": [6, 0, 0, 0],
        "num_refused_by_cap": [0, 0, 0, 1],
        "num_refused_by_min_chunk": [1, 0, 0, 0],
        "num_warm_starts": [0, 0, 0, 1],
    }
    figures = round_figures({name: np.array(values, float) for name, values in columns.items()})
    assert figures == {
        "avg_scheduled_prefill_seqs": 0.75,
        "avg_prefill_chunk_size": (24 + 8) / 4,  # over all rounds, 0 where there is none
        "chunk_of_accepted": 56 / 3,
        "blocked_by_activity_cap": 1,
        "blocked_by_min_effective_chunk": 1,
        "warm_starts": 1,
        "rounds": 4,
        "rounds_waiting": 3,
        "rounds_waiting_no_seat": 1,
        "rounds_waiting_c_t_0": 2,
        "rounds_waiting_either": 2,
        "round_ms": pytest.approx(25),
        "decode_only_ms": pytest.approx(20),  # of the rounds with the most decodes
    }


def test_gaps() -> None:
    assert [gap(0, 0), gap(4, 4), gap(4960, 0), gap(4, 3), gap(3, 4), gap(-20, 20)] == [0, 0, 1, 0.25, 0.25, 2]


def runs_of(*endings: tuple[Reading, float]) -> Runs:
    """Two requests a run, which arrive at 0 and 10 s; prefills end at 20 and 40 s, with APC too, and requests later."""
    arrival, ttft = np.array([0.0, 10.0]), np.array([20.0, 30.0])
    cases = cases_of_readings([reading for reading, _ in endings])
    figures = [
        [
            {
                "arrival": arrival,
                "ttft": ttft,
                "e2e": ttft + after,
                "itl_mean_ms": 20.0,
                **latency_rows(ttft + after, ttft),
            }
        ]
        for _, after in endings
        for _ in range(2)
    ]
    others = ("avg_scheduled_prefill_seqs", "avg_prefill_chunk_size", "blocked_by_activity_cap",
              "blocked_by_min_effective_chunk")  # fmt: skip
    for one in figures:
        one[0] |= dict.fromkeys(others, 1.0)
    return Runs(cases, (1,), figures)


def cases_of_readings(readings: list[Reading]) -> list[Case]:
    empty = Workload("none", ())
    return [
        Case({**reading._asdict(), "scheduler": scheduler}, empty, ())
        for reading in readings
        for scheduler in ("LPRS", "LPRS_APC")
    ]


def test_rounds_as_long_as_the_papers_keep_arrivals() -> None:
    """The paper's requests take 7.61 s after their prefills without APC; ours 1 s: ends stretch, arrivals do not."""
    runs = runs_of((READINGS[0], 1.0))
    run = retimed(runs, runs.cases[0], "apc_off")
    factor = 143.65 - 136.04
    assert run.itl_ms == pytest.approx(20 * factor)
    assert run.by_seed["mean_prefill_e2e_s"] == [pytest.approx(30 * factor - 5)]
    assert run.by_seed["mean_request_e2e_s"] == [pytest.approx(31 * factor - 5)]
    assert judged(runs, READINGS[0]).distances["changes"] == 1  # none of the paper's
    assert set(run.by_seed) == set(LATENCIES)


def test_distances_take_either_level_and_on_a_real_device_none() -> None:
    runs = runs_of((READINGS[0], 1.0))
    shape = ["changes", "dynamics"]
    both = judged(runs, READINGS[0]).distances
    assert list(both) == ["distance", "distance, own rounds", *shape, "counters", "level", "level, own rounds"]
    means = [sum(both[name] for name in (*shape, "counters", level)) / 4 for level in ("level", "level, own rounds")]
    assert [both["distance"], both["distance, own rounds"]] == pytest.approx(means)
    real = judged(runs, READINGS[0], simulated=False).distances
    assert real == {"distance": pytest.approx((both["changes"] + both["dynamics"]) / 2), **{k: both[k] for k in shape}}


def test_claims_are_judged_in_the_closest_reading_by_either_distance() -> None:
    a, b, c = READINGS[0], READINGS[5], AS_PRINTED
    runs = runs_of((a, 1.0), (b, 1.0), (c, 1.0))
    found = [
        judged(runs, reading)._replace(distances={"distance": i, "distance, own rounds": own})
        for i, (reading, own) in enumerate([(a, 0.4), (b, 0.3), (c, 0.5)])
    ]
    named = {name: one.reading for name, one in name_readings(found, {}).items()}
    assert named == {"closest": a, "closest, own rounds": b, "as printed": c}
    assert list(name_readings(found[1:], {})) == ["closest", "as printed"]  # both distances choose the same


@pytest.mark.parametrize(("simulated", "num_claims"), [(True, 10), (False, 6)])
def test_one_seed_decides_nothing_and_a_real_device_has_no_counters(
    tmp_path: Path, simulated: bool, num_claims: int
) -> None:
    runs, options = runs_of((READINGS[0], 1.0)), Options(backend="sim", results=tmp_path)
    report = Report("table10", "", options)
    add_claims(report, runs, {"closest": judged(runs, READINGS[0])}, simulated=simulated)
    report.finish()
    (table,) = json.loads(report.path(".json").read_text())["blocks"]
    assert [row[-1] for row in table["rows"]] == ["undecided"] * num_claims


def test_readings_that_change_nothing_are_told_once() -> None:
    a, b, c = READINGS[:3]
    assert distinct(runs_of((a, 1.0), (b, 2.0), (c, 1.0)), [a, b, c]) == ([a, b], {c: a})


def test_where_apc_matters_is_beyond_the_interval() -> None:
    changes = {10.0: Mean(-9, 1), 20.0: Mean(-3, 1), 25.0: Mean(-1.5, 1), 105.0: Mean(0, 1)}
    assert "up to a target of\n        20 ms, 0.80 of a round" in where_it_matters(changes, 25.0)
    assert where_it_matters({105.0: Mean(0, 1)}, 25.0).startswith("at no target")


def test_a_missing_predictor_is_told_with_its_make_target(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"make results/predictor/rtx_pro_5000_72gb\.npz"):
        table10.main(["--quick", "--results", str(tmp_path)])
    with pytest.raises(InputError, match=r"make results/real/cpu\.npz"):
        cases_of(Options(backend="cpu", results=tmp_path))
