"""Figures 2 to 6, and the index page with them in a browser."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import figures, index
from benchmarks.harness.options import Options
from benchmarks.harness.plots import panels_beside_paper
from benchmarks.harness.statistics import Mean
from benchmarks.harness.written import PNG
from benchmarks.table4_readings import ALPHA, CHUNKS, COLUMNS, POLICIES, shares
from sarathi.errors import InputError
from tests.browser import visit
from tests.paper_reports import HOSTILE, NOT_UTF8, made

QUICK = ("--quick", "--seeds", "1", "2", "--processes", "1")
WIDTH = 990


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Figures of every kind, from Table 4 and runs in a reduced size."""
    results = tmp_path_factory.mktemp("results")
    options = Options(results=results, quick=True)
    options.directory.mkdir()
    labels = {"reading": "exact", "seqs": 10, "profile": "lean", "alpha": ALPHA}
    runs, requests = [], []
    for reading in ("exact", "full, KV unbound"):
        for chunk in CHUNKS:
            for policy in POLICIES:
                case = {**labels, "reading": reading, "chunk": chunk, "policy": policy}
                factor = 0.9 if policy == "AGING" and reading != "exact" else 1.0
                runs += [
                    {**case, "seed": seed, **{c: factor * (50 + 10 * i + seed) for i, c in enumerate(COLUMNS)},
                     "itl_p99_ms": 20.0}
                    for seed in (1, 2)
                ]  # fmt: skip
                if chunk == 256:
                    requests += [
                        {**case, "seed": seed, "request": i, "e2e_s": factor * (10 + i)}
                        for seed in (1, 2)
                        for i in range(20)
                    ]
    for name, table in (("runs", runs), ("e2e", requests)):
        write_csv(options.directory / f"table4-{name}.csv", table)
    for figure in (*figures.FROM_TABLE_4, "figure6"):
        figures.main([figure, "--results", str(results), *QUICK])
    return results


def write_csv(path: Path, table: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)


def reports_in(results: Path) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((results / "sim-quick").glob("*.json"))}


def blocks(report: dict, kind: str) -> list[dict]:
    return [block for block in report["blocks"] if block["kind"] == kind]


def test_each_figure_has_a_png_a_csv_and_verdicts(results: Path):
    for name, report in reports_in(results).items():
        assert report["title"].startswith(f"Figure {name[-1]}: ") and "REDUCED SIZE" in report["notice"]
        claims = report["blocks"][0]
        assert claims["heading"] == "Verdict" and {row[0] for row in claims["rows"]} == {"exact", "full, KV unbound"}
        assert any("ITL P99" in column for block in blocks(report, "table") for column in block["columns"])
        for block in blocks(report, "figure"):
            content = (results / "sim-quick" / block["file"]).read_bytes()
            assert content.startswith(PNG) and int.from_bytes(content[16:20], "big") == WIDTH
    assert len(reports_in(results)) == 5


def test_figures_2_and_3_judge_changes_and_show_the_constants(results: Path):
    report = reports_in(results)["figure2"]
    claims, ours, gains = blocks(report, "table")
    fcfs = dict(zip(ours["columns"][3:], ours["rows"][0][3:], strict=True))  # the later of two equal names
    # Ours are 51.5, 61.5, 71.5 and 81.5 s; the paper's 118.72, 195.73, 107.82 and 184.86 s.
    assert float(fcfs["constant s"]) == pytest.approx((118.72 + 195.73 + 107.82 + 184.86) / 4 - 66.5, abs=0.005)
    assert gains["rows"][0] == ["256", "12.16", "0.00", "12.15"]
    verdicts = {(row[0], row[1].removeprefix("Aging's change of mean TTFT at ")): row[2:] for row in claims["rows"]}
    assert verdicts["exact", "chunk 256"] == ["-11.27 %", "+0.00 ± 0.00 %", "no effect"]
    assert verdicts["full, KV unbound", "chunk 256"] == ["-11.27 %", "-10.00 ± 0.00 %", "reproduced"]
    assert verdicts["full, KV unbound", "chunk 1024"] == ["+1.27 %", "-10.00 ± 0.00 %", "opposite"]
    claims = blocks(reports_in(results)["figure3"], "table")[0]
    identical = ["exact", "Aging's change of P95 E2E at chunk 1024", "-0.24 %", "+0.00 ± 0.00 %", "reproduced"]
    assert identical in claims["rows"]  # the paper's "nearly identical"
    with (results / "sim-quick" / "figure3.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2 * len(CHUNKS) * len(POLICIES)


def test_panels_stand_beside_the_paper():
    ours = {"exact": {"ours": [Mean(1.0, 0.1)]}, "full": {"ours": [Mean(2.0)]}}
    assert panels_beside_paper("E2E", {"paper": [5.0]}, ours, {"ours": [3.0]}) == {
        "E2E, exact": {"paper": [(5.0, None)], "ours": [(1.0, 0.1)]},
        "E2E, exact + constants": {"paper": [(5.0, None)], "ours": [(4.0, 0.1)]},
        "E2E, full": {"ours": [(2.0, None)]},
    }
    assert panels_beside_paper("E2E", {"paper": [5.0]}, ours, None) == {
        "E2E, paper": {"paper": [(5.0, None)]},
        "E2E, exact": {"ours": [(1.0, 0.1)]},
        "E2E, full": {"ours": [(2.0, None)]},
    }


def test_figure_4_tells_requests_from_ranks():
    faster, slower = shares(np.array([100.0, 100, 100, 100]), np.array([98.0, 99.5, 100.5, 200]))
    assert (faster, slower) == (25.0, 25.0)


def test_figure_4_counts_what_is_in_its_csv(results: Path):
    claims, table = blocks(reports_in(results)["figure4"], "table")
    rows = {row[0]: [cell.partition(" ")[0] for cell in row[3:7]] for row in table["rows"]}
    assert rows == {
        "exact": ["0.00", "0.00", "0.00", "0.00"],
        "full, KV unbound": ["100.00", "0.00", "100.00", "0.00"],
    }
    assert [row[-1] for row in claims["rows"]] == ["not reproduced", "reproduced"]
    with (results / "sim-quick" / "figure4.csv").open(newline="") as file:
        assert {row["reading"] for row in csv.DictReader(file)} == {*rows, "exact + constants"}


def test_figure_6_runs_the_papers_weights_and_a_range(results: Path):
    with (results / "sim-quick" / "figure6-runs.csv").open(newline="") as file:
        runs = list(csv.DictReader(file))
    alphas = {
        reading: {float(run["alpha"]) for run in runs if run["reading"] == reading and run["policy"] == "AGING"}
        for reading in ("exact", "full, KV unbound")
    }
    assert alphas["exact"] == {30.0, 150.0} and {30.0, 150.0} < alphas["full, KV unbound"]
    assert {run["policy"] for run in runs} == {"AGING", "SPF", "FCFS"}
    report = reports_in(results)["figure6"]
    assert len(report["headlines"]) == 1
    nearer = report["blocks"][0]["rows"][-1]
    assert "alpha 30 less that at 150" in nearer[1] and nearer[0] == "full, KV unbound"
    assert [row[2] for row in report["blocks"][0]["rows"][:2]] == ["+0.69 %", "+0.91 %"]


def test_without_table_4_one_line_names_its_target(tmp_path: Path, results: Path):
    with pytest.raises(InputError, match=r"table4-runs\.csv is missing: run make table4 first$"):
        figures.main(["figure2", "--results", str(tmp_path)])
    with pytest.raises(InputError, match="make table4 BACKEND=cpu first"):
        figures.main(["figure4", "--results", str(tmp_path), "--backend", "cpu"])
    runs = tmp_path / "sim" / "table4-runs.csv"
    runs.parent.mkdir(exist_ok=True)
    write_csv(runs, [{"reading": "other", "seed": 1}])
    write_csv(runs.with_name("table4-e2e.csv"), [{"reading": "other", "e2e_s": 1}])
    with pytest.raises(InputError, match="run make table4 again"):
        figures.main(["figure5", "--results", str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("runs", b"", NOT_UTF8, "is no CSV file"),
        ("e2e", b"", NOT_UTF8, "is no CSV file"),
        ("runs", b"itl_p99_ms", b"other", "column itl_p99_ms: None is no number"),
        ("e2e", b"e2e_s", b"other", "column e2e_s: None is no number"),
        ("e2e", b",seed,", b",other,", "column seed: None is no number"),
        ("e2e", b",1,0,10.0", b",1", "column e2e_s: None is no number"),  # cut short
        ("e2e", b",1,0,10.0", b",1,0,", "column e2e_s: '' is no number"),
        ("runs", b",20.0", b",nan", "column itl_p99_ms: 'nan' is no number"),
        ("e2e", b",1,0,10.0", b",1,0,inf", "column e2e_s: 'inf' is no number"),
        ("e2e", b"256,AGING,1,0,9.0", b"256,OTHER,1,0,9.0", "{'FCFS': 40, 'AGING': 39} rows with"),
        ("e2e", b",policy,", b",other,", "{'FCFS': 0, 'AGING': 0} rows with"),
    ],
)
def test_a_damaged_file_of_table_4_is_named_in_one_line(
    tmp_path: Path, results: Path, name: str, old: bytes, new: bytes, message: str
):
    (tmp_path / "sim-quick").mkdir()
    for path in (results / "sim-quick").glob("table4-*.csv"):
        (tmp_path / "sim-quick" / path.name).write_bytes(path.read_bytes())
    damaged = tmp_path / "sim-quick" / f"table4-{name}.csv"
    content = damaged.read_bytes()
    assert old in content
    damaged.write_bytes(content.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"^[^\n]*table4-{name}\.csv[^\n]*{re.escape(message)}[^\n]* again$"):
        figures.main(["figure4", "--results", str(tmp_path), *QUICK])


def test_the_same_command_gives_the_same_bytes(results: Path):
    names = ("figure4.md", "figure4.json", "figure4.csv", "figure4.png")
    before = [(results / "sim-quick" / name).read_bytes() for name in names]
    figures.main(["figure4", "--results", str(results), *QUICK])
    assert [(results / "sim-quick" / name).read_bytes() for name in names] == before


def test_the_index_opens_in_a_browser_without_network(tmp_path: Path, results: Path):
    reports = tmp_path / "sim"
    reports.mkdir()
    for path in (results / "sim-quick").iterdir():
        (reports / path.name).write_bytes(path.read_bytes())
    made(tmp_path, "table4", f"Table 4: {HOSTILE}")
    index.main(["--results", str(tmp_path)])
    visited = visit(tmp_path / "index.html")
    assert visited.console == [] and visited.requested == []
    assert "taken" not in re.search(r"<title>.*?</title>", visited.dom)[0]  # type: ignore[index]
