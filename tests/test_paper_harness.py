"""The harness of the paper's tables: statistics, verdicts, reports, how a load is scaled, and Table 4 in small."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from benchmarks import table4
from benchmarks.harness.backends import flags_of, stretches
from benchmarks.harness.cases import STATIC_INTERVAL, Case, scheduler_flags, sharegpt
from benchmarks.harness.options import Options, parse_options
from benchmarks.harness.report import Report
from benchmarks.harness.run import run_cases
from benchmarks.harness.statistics import (
    DIRECTION,
    NONE,
    OPPOSITE,
    REPRODUCED,
    Mean,
    change,
    fit_offset,
    mean_of,
    verdict,
)
from benchmarks.paper import paper, rows
from sarathi.config import parse_args

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
        (-10.0, Mean(-0.1, 0.01), DIRECTION),
        (-10.0, Mean(-30.0, 1.0), DIRECTION),
        (-10.0, Mean(-1.0, 2.0), NONE),
        (-10.0, Mean(3.0, 1.0), OPPOSITE),
        (10.0, Mean(6.0, 1.0), REPRODUCED),
        (10.0, Mean(-6.0, 1.0), OPPOSITE),
    ],
)
def test_verdicts(paper_change: float, ours: Mean, expected: str) -> None:
    assert verdict(paper_change, ours) == expected


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
    assert not list(tmp_path.iterdir())  # runs leave nothing unless they are kept


def test_runs_are_kept_on_request(tmp_path: Path) -> None:
    run_cases("t", [CASE], Options(results=tmp_path, seeds=(1,), keep_runs=True))
    (summary,) = tmp_path.glob("sim/runs/t-000-1/*/summary.json")
    assert json.loads(summary.read_text())["num_finished"] == 12


def test_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("t", "A title", Options(results=tmp_path))
    report.add_list("Assumptions", ["one\n    thing"])
    report.add_table("Numbers", ["name", "value"], [["a|b", 1234.5], ["c", None]], note="a note")
    report.add_claim("it holds", "1 %", "2 %", REPRODUCED)
    report.add_claim("it falls", "-1 %", "2 %", OPPOSITE)
    path = report.write_csv("-runs.csv", [{"a": 1, "b": 2}, {"a": 3, "c": 4}])
    report.finish()
    printed = capsys.readouterr().out
    assert (tmp_path / "sim" / "t.md").read_text() + "\n" == printed
    assert "SIMULATED" in printed and "- one thing" in printed and "a note" in printed
    assert "| a\\|b | 1,234.50 |" in printed and "| c    |        – |" in printed
    assert "Shape not reproduced as a whole: 1 reproduced, 1 opposite, of 2 claims." in printed
    assert json.loads((tmp_path / "sim" / "t.json").read_text())["blocks"][1]["rows"] == [
        ["a|b", "1,234.50"],
        ["c", "–"],
    ]
    assert list(csv.reader(path.open())) == [["a", "b", "c"], ["1", "2", ""], ["3", "", "4"]]


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
