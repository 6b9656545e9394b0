"""The harness of the paper's tables: statistics, verdicts, reports, how a load is scaled, and Table 4 in small."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import table4
from benchmarks.harness.backends import flags_of, stretches
from benchmarks.harness.cases import STATIC_INTERVAL, Case, fcfs_or_aging, scheduler_flags, sharegpt
from benchmarks.harness.options import Options, parse_options
from benchmarks.harness.report import LEGEND, Report, is_number
from benchmarks.harness.run import run_cases, tell_of_wandb
from benchmarks.harness.statistics import (
    DIRECTION,
    NONE,
    NOT_REPRODUCED,
    OPPOSITE,
    PARTLY,
    REPRODUCED,
    UNDECIDED,
    Mean,
    beyond,
    change,
    fit_factor,
    fit_offset,
    level,
    mean_of,
    verdict,
)
from benchmarks.harness.written import read_reports
from benchmarks.paper import paper, policy_change, row, rows
from benchmarks.table4_readings import ALPHA, FULL, NOT_BINDING, POLICIES
from sarathi.config import parse_args
from sarathi.metrics.wandb_follower import warning

SMALL = sharegpt("small", 12, 0.1, reduced={"num_requests": 4, "output_tokens": 5}, output_tokens=20)
CASE = Case({"policy": "FCFS"}, SMALL, scheduler_flags("FCFS", 64, 4))


def flag(flags: list[str], name: str) -> str:
    """The value that `parse_args` would take: the last."""
    return [f.partition("=")[2] for f in flags if f.startswith(f"--{name}=")][-1]


def test_intervals_are_student_t() -> None:
    mean = mean_of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean.value == 3.0
    assert mean.half == pytest.approx(2.776 * 2.5**0.5 / 5**0.5)
    assert mean_of([7.0]) == Mean(7.0, None)
    assert mean_of([7.0]).text(1, " s") == "7.0 s"
    assert Mean(1234.5, 0.25).text() == "1,234.50 ± 0.25"


def test_changes_are_paired_by_seed() -> None:
    """Seeds differ by a factor of two, the change is the same in all: no spread."""
    paired = change([10.0, 20.0, 40.0], [9.0, 18.0, 36.0])
    assert paired.value == pytest.approx(-10)
    assert paired.half == pytest.approx(0, abs=1e-12)
    assert change([0.0], [0.0]).value == 0


@pytest.mark.parametrize(
    ("paper_change", "ours", "expected"),
    [
        (-10.0, Mean(-9.0, 2.0), REPRODUCED),
        (-10.0, Mean(-1.5, 0.01), DIRECTION),
        (-10.0, Mean(-0.9, 0.01), NONE),  # too small to be a change
        (-10.0, Mean(-30.0, 1.0), DIRECTION),
        (-10.0, Mean(-1.0, 2.0), NONE),
        (-10.0, Mean(-10.0), UNDECIDED),  # one run
        (-0.2, Mean(0.1), UNDECIDED),
        (-0.2, Mean(0.5, 0.4), REPRODUCED),  # about equal, in both
        (-0.2, Mean(0.0, 2.0), UNDECIDED),
        (-0.2, Mean(-2.0, 0.9), NOT_REPRODUCED),
        (-10.0, Mean(3.0, 1.0), OPPOSITE),
        (10.0, Mean(6.0, 1.0), REPRODUCED),
        (10.0, Mean(-6.0, 1.0), OPPOSITE),
    ],
)
def test_verdicts(paper_change: float, ours: Mean, expected: str) -> None:
    assert verdict(paper_change, ours) == expected


def test_beyond_a_bound_over_the_whole_interval() -> None:
    values = (Mean(60, 5), Mean(60, 15), Mean(40, 5), Mean(60))
    assert [beyond(ours, 50) for ours in values] == [REPRODUCED, UNDECIDED, NOT_REPRODUCED, UNDECIDED]


def test_levels() -> None:
    assert level([100, 10], [109, 9.1]) == REPRODUCED
    assert level([100, 10], [109, 9.1], within=5) == PARTLY
    assert level([100, 10], [100, 19]) == PARTLY
    assert level([100, 10], [100, 21]) == level([0, 10], [1, 10]) == NOT_REPRODUCED


def test_the_factor_is_the_geometric_mean() -> None:
    factor = fit_factor([2.0, 8.0], [1.0, 1.0])
    assert factor.factor == pytest.approx(4) and factor.largest_rest == pytest.approx(100)


def test_the_constant_is_least_squares() -> None:
    offset = fit_offset([11.0, 22.0, 33.3], [1.0, 12.0, 23.0])
    assert offset.constant == pytest.approx(10.1)
    assert offset.largest_rest == pytest.approx(0.2)


def test_the_papers_figures_are_those_of_its_source(shared: Path) -> None:
    """Only units are named otherwise: latencies that the paper prints as ms are read as seconds."""
    source = json.loads((shared / "paper" / "numbers.json").read_text())
    ours = paper()
    for table in (f"table{i}" for i in range(3, 11)):
        for name, value in ours[table].items():
            if name == "columns":
                value = [column.replace("_s", "_ms") if table == "table9" else column for column in value]
            if name == "rows" and table == "table10":
                value = [[row[0].replace("_e2e_s", "_e2e_ms"), *row[1:]] for row in value]
            assert value == source[table][name], (table, name)
    assert rows("table4")[0] == {
        "chunk": 256, "policy": "FCFS", "mean_e2e_s": 118.72, "p95_e2e_s": 195.73, "mean_ttft_s": 107.82,
        "p95_ttft_s": 184.86,
    }  # fmt: skip


def test_rows_of_the_paper_by_their_labels() -> None:
    assert row("table4", chunk=1024, policy="AGING")["mean_e2e_s"] == 110.59
    assert policy_change("table4", "mean_e2e_s", chunk=256) == pytest.approx(100 * (106.56 / 118.72 - 1))
    with pytest.raises(ValueError, match="too many"):
        row("table4", chunk=256)


def test_flags_of_each_backend() -> None:
    sim = flags_of(CASE, Options("sim"), {})
    assert flag(sim, "executor_config_type") == "SIMULATED"
    assert flag(sim, "sharegpt_request_generator_config_num_requests") == "12"
    quick = flags_of(CASE, Options("sim", quick=True), {})
    assert flag(quick, "sharegpt_request_generator_config_num_requests") == "4"
    cpu = flags_of(CASE, Options("cpu"), {"small": 3.0})
    assert flag(cpu, "executor_config_type") == "LOCAL"
    assert flag(cpu, "sharegpt_request_generator_config_output_tokens") == "5"
    assert float(flag(cpu, STATIC_INTERVAL.removeprefix("--"))) == pytest.approx(0.3)
    cuda = flags_of(CASE, Options("cuda"), {})
    assert flag(cuda, "local_executor_config_device") == "cuda"
    assert flag(cuda, "sharegpt_request_generator_config_num_requests") == "12"
    for flags in (sim, quick, cpu, cuda):
        parse_args(flags)


def test_the_cpu_gets_the_same_overload() -> None:
    """12 requests take 6 s simulated, 4 take 8 s here: 4 times as long each, so they come 4 times as far apart."""
    served = []

    def serve(flags: list[str]) -> tuple[int, float]:
        served.append(flags)
        return (4, 8.0) if "--executor_config_type=LOCAL" in flags else (12, 6.0)

    factors, notes = stretches([CASE, CASE], serve)
    assert factors == {"small": 4.0}
    assert all(float(flag(flags, STATIC_INTERVAL.removeprefix("--"))) == 0 for flags in served) and len(served) == 2
    assert "4 times" in notes[0]


def test_a_case_runs_with_every_seed(tmp_path: Path) -> None:
    runs = run_cases("t", [CASE], Options(results=tmp_path, seeds=(1, 2)))
    assert [row["seed"] for row in runs.rows()] == [1, 2]
    first, second = runs.values(CASE, "mean_e2e_s")
    assert first != second and first == pytest.approx(second, rel=0.05)  # jitter alone tells them apart
    assert runs.values(CASE, "num_finished") == [12, 12]
    (setup,) = runs.notes
    assert "simulated" in setup and "; seeds 1, 2; the first of 2 runs: `python -m sarathi.benchmark.main --" in setup
    assert setup.endswith(" --seed=1`")
    assert not list(tmp_path.iterdir())  # runs leave nothing unless they are kept


def test_runs_are_kept_on_request(tmp_path: Path) -> None:
    run_cases("t", [CASE], Options(results=tmp_path, seeds=(1,), keep_runs=True))
    (summary,) = tmp_path.glob("sim/runs/t-000-1/*/summary.json")
    assert json.loads(summary.read_text())["num_finished"] == 12


def test_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Headlines first, then verdicts, then what was added, in that order."""
    report = Report("t", "A title", Options(results=tmp_path))
    report.add_list("Assumptions", ["one\n    thing"])
    report.add_table("Numbers", ["name", "value"], [["a|b", 1234.5], ["c", None]], note="a note")
    report.add_claim("it holds", "1 %", "2 %", REPRODUCED, "near")
    report.add_claim("it falls", "-1 %", "2 %", OPPOSITE, "far")
    report.add_check("it is so", "'so'", "so", True, "far")
    report.add_headline("The\n    first.")
    report.add_headline("The second.")
    path = report.write_csv("-runs.csv", [{"a": 1, "b": 2}, {"a": 3, "c": 4}])
    report.finish()
    printed = capsys.readouterr().out
    assert (tmp_path / "sim" / "t.md").read_text() + "\n" == printed
    parts = ["## A title", "**SIMULATED", "The first. The second.", "### Verdict", "### Assumptions", "- one thing",
             "### Numbers", "a note"]  # fmt: skip
    assert [*map(printed.index, parts)] == sorted(map(printed.index, parts))
    assert "| a\\|b | 1,234.50 |" in printed and "| c    |        – |" in printed
    tally = "Shape reproduced in the reading near. Claims reproduced: near: 1 of 1; far: 1 of 2."
    assert f"\n{tally} {LEGEND}\n" in printed
    verdicts, _, numbers = json.loads((tmp_path / "sim" / "t.json").read_text())["blocks"]
    assert verdicts["columns"] == ["reading", "the paper's claim", "paper", "ours", "verdict"]
    assert verdicts["rows"][2] == ["far", "it is so", "'so'", "so", "reproduced"]
    assert numbers["rows"] == [["a|b", "1,234.50"], ["c", "–"]]
    assert list(csv.reader(path.open())) == [["a", "b", "c"], ["1", "2", ""], ["3", "", "4"]]
    (written,) = read_reports(tmp_path, "sim")
    assert written.held == (2, 3) and written.by_reading["far"] == ["opposite", "reproduced"]


def test_a_claim_counts_once_if_it_holds_in_any_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("t", "A title", Options(results=tmp_path), notice="HALF REAL.")
    for reading, claim, holds in (
        ("a", "in both", True), ("b", "in both", True), ("a", "in one", False), ("b", "in one", True),
        ("a", "in none", False), ("b", "in none", False), ("b", "judged in b alone", False),
    ):  # fmt: skip
        report.add_check(claim, "1", "2", holds, reading)
    report.finish()
    assert read_reports(tmp_path, "sim")[0].held == (2, 4)
    assert "**HALF REAL.**" in capsys.readouterr().out


def test_a_claim_without_a_reading_has_no_name_in_the_tally(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("t", "A title", Options(results=tmp_path))
    report.add_check("claim", "1", "2", False)
    report.finish()
    assert "Shape not reproduced as a whole. Claims reproduced: 0 of 1." in capsys.readouterr().out


def test_numbers_are_told_from_texts() -> None:
    assert all(map(is_number, ("–", "1,234.50", "-3", "+0.50 ± 0.10 %", "3.2 s", "12 ms")))
    assert not any(map(is_number, ("", "256 to 512", "3 of 4", "1.0 (2.0)", "s")))


def test_options() -> None:
    assert parse_options("", []).seeds == (1, 2, 3, 4, 5)
    assert parse_options("", ["--backend", "cpu"]).seeds == (1,)
    assert parse_options("", ["--backend", "cpu"]).processes == 1  # a real engine takes the whole machine
    assert parse_options("", ["--quick"]).directory == Path("results/sim-quick")


def test_table4_in_small_twice_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = []
    for folder in ("a", "b"):
        table4.main(["--quick", "--results", str(tmp_path / folder), "--processes", "1", "--seeds", "1"])
        files = sorted((tmp_path / folder / "sim-quick").iterdir())
        written.append({path.name: path.read_bytes() for path in files})
    assert written[0] == written[1]
    assert {*written[0]} == {"table4-e2e.csv", "table4-runs.csv", "table4.json", "table4.md"}
    assert "REDUCED SIZE" in capsys.readouterr().out
    rows = list(csv.DictReader(written[0]["table4-runs.csv"].decode().splitlines()))
    assert {row["policy"] for row in rows} == {"FCFS", "AGING"} and len(rows) == 66
    assert all(float(row["itl_p99_ms"]) > 0 for row in rows)


def test_aging_lowers_means_where_prefill_is_the_bottleneck(tmp_path: Path) -> None:
    """In every seed, each with other conversations: whole ones, 100 of them, with KV blocks that do not bind."""
    hundred = replace(
        FULL,
        flags=(*FULL.flags, "--sharegpt_request_generator_config_num_requests=100"),
    )
    cases = [
        Case(
            {"policy": p},
            hundred,
            fcfs_or_aging(p, 256, 128, ALPHA),
            system=NOT_BINDING,
        )
        for p in POLICIES
    ]
    runs = run_cases("t", cases, Options(results=tmp_path))
    for figure in ("mean_e2e_s", "mean_ttft_s"):
        fcfs, aging = (runs.values(case, figure) for case in cases)
        assert len(fcfs) == 5 and all(after < before for before, after in zip(fcfs, aging, strict=True)), figure


def test_what_wandb_has_not_in_full_is_told(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the line says what could be synced all the same."""
    done, partial = "wandb: offline, wandb sync a", warning("disk full; what there is: wandb sync b")
    tell_of_wandb([done, partial, done])
    assert done in capsys.readouterr().err
    assert "1 of 3 runs" in caplog.text and "disk full" in caplog.text
    caplog.clear()
    tell_of_wandb([done, done])
    tell_of_wandb([])
    assert caplog.text == "" and capsys.readouterr().err.count("wandb") == 2
