"""What tests of the paper's tables share: a quick run of one, and reports that no table wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, get_args

from benchmarks.harness.options import Options
from benchmarks.harness.report import VERDICT, Report
from benchmarks.harness.statistics import Verdict
from benchmarks.harness.written import PNG

HOSTILE = "</script><img src=x onerror=\"document.title='taken'\"><b>'&amp;| *x*"
NOT_UTF8 = b"\xff\xfe\x00"


def quick_report(table: Any, results: Path) -> dict[str, Any]:
    """The report of a quick run, with its tables by heading."""
    table.main(["--quick", "--results", str(results), "--processes", "1"])
    name = table.__name__.rpartition(".")[2]
    report = json.loads((results / "sim-quick" / f"{name}.json").read_text(encoding="utf-8"))
    assert (results / "sim-quick" / f"{name}.md").stat().st_size > 1000
    for block in report["blocks"]:
        if block["kind"] == "figure":
            assert (results / "sim-quick" / block["file"]).stat().st_size > 10_000
    tables = {block["heading"]: block for block in report["blocks"] if block["kind"] == "table"}
    assert {row[-1] for row in tables[VERDICT]["rows"]} <= {*get_args(Verdict)}
    return {**report, "tables": tables}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def made(
    results: Path, name: str, title: str, backend: str = "sim", claims: int = 1, headline: str = "says this"
) -> Report:
    """A report as a table would write it."""
    report = Report(name, title, Options(backend=backend, results=results))
    report.add_list("Assumptions", [f"of {HOSTILE}"])
    report.add_table("Numbers", ["name", "s"], [["a", 1.5], ["b", None]])
    for i in range(claims):
        report.add_claim(f"claim {i}", "1 %", "2 %", "reproduced" if i == 0 else "opposite", f"reading {i // 2}")
    if headline:
        report.add_headline(headline)
    report.path(".png").write_bytes(PNG + name.encode())
    report.add_figure(report.path(".png"), f"Picture of {name}")
    report.finish()
    return report
