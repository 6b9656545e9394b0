"""Table 9: what its script leaves, and its search and fits on numbers that are known."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from benchmarks import table9
from benchmarks.harness.report import CLAIM_COLUMNS
from benchmarks.harness.statistics import Verdict
from benchmarks.paper import rows
from benchmarks.table9_level import DELAY, QUANTITIES, TTFT, fit_start, late
from benchmarks.table9_rounds import paper_changes
from predictor.model import Predictor
from predictor.shipped import shipped_file
from sarathi.errors import InputError


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Of a quick run, with the shipped predictor for both engine profiles."""
    folder = tmp_path_factory.mktemp("results")
    model = Predictor.load(shipped_file(table9.DEVICE, "Qwen/Qwen3-8B"))
    model.save(folder / "predictor" / f"{table9.DEVICE}.npz")
    model.info = replace(model.info, source=replace(model.info.source, engine_profile="sarathi_2024"))
    model.save(folder / "predictor" / f"{table9.DEVICE}--sarathi_2024.npz")
    table9.main(["--quick", "--results", str(folder), "--processes", "1", "--seeds", "1", "2"])
    return folder / "sim-quick"


def tables(results: Path) -> dict[str, dict]:
    report = json.loads((results / "table9.json").read_text())
    return {block["heading"].partition(",")[0]: block for block in report["blocks"] if block["kind"] == "table"}


def test_all_files_are_there_and_no_table_is_too_large(results):
    assert {path.name for path in results.iterdir()} >= {
        *("table9.md", "table9.json", "table9-runs.csv", "table9-rounds.png", "table9-itl.png")
    }
    for table in tables(results).values():
        assert len(table["columns"]) <= 14 and len(table["rows"]) <= 40
        assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_the_papers_rows_stand_as_printed(results):
    level = tables(results)["Level"]
    printed = [row for row in level["rows"] if row[1] == "paper"]
    assert [(row[0], row[3]) for row in printed] == [
        *(("high", "LPRS"), ("high", "budget"), ("regular", "LPRS"), ("regular", "budget"))
    ]
    p99 = next(row for row in rows("table9") if (row["load"], row["quantile"]) == ("high", "P99"))
    assert (printed[0][7], printed[0][11]) == (f"{p99['prefill_lprs_s']:.1f}", f"{p99['request_lprs_s']:.1f}")


def test_every_claim_has_a_reading_and_a_verdict(results):
    verdict = tables(results)["Verdict"]
    assert tuple(verdict["columns"]) == CLAIM_COLUMNS
    claims = verdict["rows"]
    assert claims and {claim[-1] for claim in claims} <= {*get_args(Verdict)}
    assert all(all(cell for cell in claim) for claim in claims)
    assert {claim[0] for claim in claims} == {*table9.READINGS, "script, sarathi_2024", "140 seqs, sarathi_2024"}
    assert not any(name in claim[1] for claim in claims for name in table9.READINGS)


def test_a_wait_for_a_round_is_beside_the_papers_p99(results):
    claims = [claim for claim in tables(results)["Verdict"]["rows"] if "running round" in claim[1]]
    readings = [place[0] for place, names in table9.PLAN.items() if place[1] == "regular" and "budget" in names]
    assert [claim[0].partition(",")[0] for claim in claims] == readings
    assert all(claim[2] == "P99 22.01 s, jump 21.87 s" and "longest round" in claim[3] for claim in claims)


def test_at_most_two_short_headlines(results):
    headlines = json.loads((results / "table9.json").read_text())["headlines"]
    assert len(headlines) == 2 and all(len(line) <= 150 for line in headlines)


def test_the_unit_is_argued_from_the_papers_rows(results):
    """(129.29 - 0.089) over 2,048 tokens."""
    text = (results / "table9.md").read_text()
    assert "TTFT would be 0.089 ms" in text and "decode one in 0.063 ms" in text


def test_each_run_is_a_row_with_its_figures(results):
    with (results / "table9-runs.csv").open(newline="") as file:
        runs = list(csv.DictReader(file))
    assert {(row["reading"], row["load"], row["profile"]) for row in runs} == set(table9.PLAN)
    assert {row["seed"] for row in runs} == {"1", "2"}
    assert all(float(row[name]) > 0 for row in runs for name in (*QUANTITIES, "itl_p99_ms", "mixed_mean_ms"))
    assert all(float(row[delay]) <= float(row[ttft]) for row in runs for delay, ttft in zip(DELAY, TTFT, strict=True))
    assert {int(row["budget"]) for row in runs if not row["scheduler"].startswith("tuned")} == {1024}
    tuned = {(row["reading"], row["load"]) for row in runs if row["scheduler"].startswith("tuned")}
    assert tuned >= {("script", "regular"), ("140 seqs", "regular")}


def test_lprs_does_not_exceed_its_target_as_the_budget_does(results):
    """Where prompts fill the rounds; it holds with each seed."""
    with (results / "table9-runs.csv").open(newline="") as file:
        above = {
            (row["scheduler"], row["seed"]): float(row["above_percent"])
            for row in csv.DictReader(file)
            if row["reading"] == "history"
        }
    assert all(above["LPRS_APC", seed] < above["budget", seed] for seed in "12")


def test_a_missing_predictor_is_one_line_with_the_target_of_make(tmp_path):
    with pytest.raises(InputError, match=r"make results/predictor/rtx_pro_5000_72gb\.npz") as error:
        table9.main(["--quick", "--results", str(tmp_path), "--processes", "1"])
    assert "\n" not in str(error.value)


def test_the_tuned_budget_is_the_step_nearest_to_the_target():
    for target, budget in ((50.0, 496), (50.9, 512), (1.0, 16), (900.0, 1024)):
        assert table9.tuned_budget(lambda tokens: tokens / 10, target, 1024) == budget


def test_a_late_start_delays_those_who_came_before_it():
    arrivals = np.arange(5.0, 15.0)
    assert late(np.full(10, 0.5), arrivals, 3.0) == pytest.approx([3.5, 2.5, 1.5, *[0.5] * 7])


def test_the_start_is_fitted_to_the_p99():
    arrivals, ttft = np.arange(1000.0), np.full(1000, 0.1)
    start = fit_start(ttft, arrivals, 22.01)
    assert start == pytest.approx(22.01 + 9.99 - 0.1, abs=0.02)  # ten requests of a thousand wait longer
    assert np.percentile(late(ttft, arrivals, start), 99) == pytest.approx(22.01)
    assert fit_start(ttft, arrivals, 0.05) == 0


def test_a_mixed_round_has_prompt_left_if_one_goes_on_or_apc_refused_one():
    rounds = {
        "num_prefills": np.array([1, 2, 0, 1, 1, 1]),
        "prefill_processed_tokens": np.array([0, 300, 0, 5, 0, 0]),
        "num_refused_by_cap": np.array([0, 0, 0, 0, 1, 0]),
        "num_refused_by_min_chunk": np.array([0, 0, 2, 0, 0, 0]),
    }
    # Goes on; nothing after it; no mixed round; finished; refused; the last one.
    assert table9.prompt_left(rounds).tolist() == [True, False, False, False, True, False]


def test_the_papers_changes_are_those_of_its_text():
    """889.45 against 924.22, and 952.56 against 986.93."""
    changes = paper_changes("high")
    assert (changes["ttft_p99_s"], changes["e2e_p99_s"]) == pytest.approx((-3.76, -3.48), abs=0.005)
