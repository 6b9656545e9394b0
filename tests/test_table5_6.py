"""Tables 5 and 6: what their quick runs write, and the figures behind them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from benchmarks import table5, table6, table6_readings
from benchmarks.harness.cases import Case
from benchmarks.harness.options import Options
from benchmarks.harness.statistics import NOT_REPRODUCED, REPRODUCED, Verdict
from benchmarks.table5_fits import at_speed, paper_change, paper_round, paper_rounds, paper_row, round_ms
from sarathi.simulation.models import load_model_shape
from tests.paper_reports import quick_report, rows_of


def test_table5(tmp_path: Path) -> None:
    report = quick_report(table5, tmp_path)
    tables, readings = report["tables"], table5.readings(Options(quick=True))
    level = next(table for heading, table in tables.items() if heading.startswith("Level"))
    assert len(level["columns"]) == 14
    assert len(level["rows"]) == 6 * len({reading.system for reading in readings})
    assert {row[0] for row in tables["Readings, nearest first"]["rows"]} == {"TP 2", "PP 2", "one GPU"}
    changes = tables["What Aging changes, percent"]
    assert [row[0] for row in changes["rows"]] == ["paper", *(r.name for r in readings for _ in table5.ALPHAS)]
    assert changes["rows"][0][2:5] == ["4.84", "0.49", "-1.98"]
    assert len(tables["Verdict"]["rows"]) == 14
    assert {row[-1] for row in tables["Verdict"]["rows"]} <= {*get_args(Verdict)}
    assert len(report["headlines"]) == 1
    runs = rows_of(tmp_path / "sim-quick" / "table5-runs.csv")
    assert len(runs) == 2 * 9 * len(readings)
    assert all(float(run["decode_round_ms"]) > 0 and float(run["itl_p99_ms"]) > 0 for run in runs)


def test_table5_full_grid() -> None:
    """Every pair of a GPU's part and a profile is read with both kinds of outputs; real devices have one worker."""
    assert len({reading.name for reading in table5.readings(Options())}) == 12
    for backend in ("cpu", "cuda"):
        assert table5.readings(Options(backend=backend)) == [table5.ALONE]
    assert table5.ALONE.name == "one worker"


def test_rounds_that_follow_from_the_papers_rows() -> None:
    assert round_ms(2.0, 1.0, 11) == pytest.approx(100)
    assert paper_rounds() == [(10, pytest.approx(18.748, abs=1e-3)), (32, pytest.approx(29.902, abs=1e-3))]
    aging = paper_row((256, 10), "AGING")
    assert paper_round(aging) == pytest.approx(1e3 * (103.84 - 93.79) / 511)
    assert paper_round(aging, "p95") == pytest.approx(1e3 * (173.58 - 163.83) / 511)
    assert paper_change((512, 32)) == pytest.approx(-1.975, abs=1e-3)


def test_at_speed() -> None:
    """What ends at 2 and 10 ends at 3 and 15; arrivals stay."""
    assert at_speed(np.array([0.0, 4.0]), np.array([2.0, 6.0]), 1.5).tolist() == [3.0, 11.0]


def test_table6(tmp_path: Path) -> None:
    report = quick_report(table6, tmp_path)
    tables = report["tables"]
    answers = [row[2] for row in tables["What the paper's figures say by themselves"]["rows"]]
    assert answers[:2] == ["no; at most 0.075 s apart", "no"]
    assert answers[2].startswith("then that much")
    assert answers[3] == "87.3 on average"
    num_readings = len(table6_readings.cases(Options(quick=True)))
    best = tables[f"The nearest {table6_readings.NUM_BEST} of {num_readings} readings"]
    assert len(best["columns"]) == 14
    assert best["rows"][0][6:] == ["14.99", "6.55", "6.52", "8.60", "9.56", "10.52", "12.70", "12.90"]
    distances = [float(row[5].replace(",", "")) for row in best["rows"][1:]]
    assert distances == sorted(distances)
    assert len(distances) == table6_readings.NUM_BEST == len(tables["The same readings"]["rows"])
    arrivals = [row for row in tables["How near one comes with each choice"]["rows"] if row[0] == "arrivals"]
    assert [row[1] for row in arrivals] == list(table6_readings.ARRIVALS)
    assert [row[1] for row in tables["Verdict"]["rows"]][:2] == ["total time", "E2E time, mean"]
    assert {row[-1] for row in tables["Verdict"]["rows"]} <= {REPRODUCED, NOT_REPRODUCED}
    readings = rows_of(tmp_path / "sim-quick" / "table6-readings.csv")
    assert len(readings) == num_readings
    assert [float(row["level"]) for row in readings] == sorted(float(row["level"]) for row in readings)


def test_sending_times_of_a_closed_loop() -> None:
    """Two clients: the third request is sent when the first of two has ended, the fourth at the next end."""
    ended = np.array([5.0, 2.0, 4.0, 9.0])
    assert table6_readings.sending_times(ended, 2).tolist() == [0, 0, 2, 4]
    assert table6_readings.sending_times(ended, 9).tolist() == [0, 0, 0, 0]


def test_eight_figures_count_from_sending_in_a_closed_loop() -> None:
    figures = {"arrived": np.zeros(3), "ended": np.array([3.0, 2.0, 6.0])}

    def case(arrivals: str) -> Case:
        return next(c for c in table6_readings.cases(Options(quick=True)) if c.labels["arrivals"] == arrivals)

    closed = case(table6_readings.CLOSED)
    closed = Case({**closed.labels, "seqs": 2}, closed.workload, closed.scheduler)
    at_once, looped = table6_readings.eight(case("at once"), figures), table6_readings.eight(closed, figures)
    assert (at_once["total"], at_once["mean"], at_once["max"]) == (6.0, pytest.approx(11 / 3), 6.0)
    assert (looped["total"], looped["mean"], looped["max"]) == (6.0, 3.0, 4.0)


def test_distance() -> None:
    theirs = {"a": 1.0, "b": 2.0}
    assert table6_readings.distance(theirs, theirs) == table6_readings.Distance(0.0, 0.0, 1.0)
    twice = table6_readings.distance(theirs, {"a": 0.5, "b": 1.0})
    assert (twice.level, twice.shape, twice.speed) == pytest.approx((np.log(2), 0.0, 2.0))
    swapped = table6_readings.distance(theirs, {"a": 2.0, "b": 1.0})
    assert (swapped.level, swapped.shape, swapped.speed) == pytest.approx((np.log(2), np.log(2), 1.0))


@pytest.mark.parametrize(("name", "billions"), [("openPangu-Embedded-1B", 1.0), ("openPangu-Embedded-7B", 7.0)])
def test_models_have_the_size_that_names_them(name: str, billions: float) -> None:
    """Of their layers: the name counts no embedding."""
    shape = load_model_shape(table6_readings.MODELS[name])
    assert shape.num_layers * shape.layer_params() / 1e9 == pytest.approx(billions, rel=0.1)
