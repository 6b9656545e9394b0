"""`make index`: results/index.html, one page of all tables and figures that lie under results, with all verdicts first.

It needs nothing but itself: images lie in the page, and nothing is asked of the network.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.options import BACKENDS
from benchmarks.harness.report import NOTICES, VERDICT
from benchmarks.harness.statistics import DIRECTION, OPPOSITE, REPRODUCED
from benchmarks.harness.written import Written, read_reports
from sarathi.metrics.html.page import NO_VALUE, Cell, Page, Tone, Value
from sarathi.metrics.sinks import write_text

TITLE = "The paper's tables and figures beside ours"
SUBTITLE = "Fairness-Aware and Latency-Controllable Scheduling for Chunked-Prefill LLM Serving"
SHORT = {"sim": "simulated", "cpu": "CPU", "cuda": "CUDA"}
TONES: Mapping[str, Tone] = {REPRODUCED: "good", DIRECTION: "muted", OPPOSITE: "bad", "not reproduced": "bad"}
NO_BREAK = "\u00a0"
NUMBER = re.compile(r"[-+−]?\d[\d,]*(\.\d+)?")


def index_page(results: Path) -> str:
    """The page's HTML."""
    reports = {backend: read_reports(results, backend) for backend in BACKENDS}
    reports = {backend: written for backend, written in reports.items() if written}
    if not reports:
        raise SystemExit(f"no reports under {results}: run make paper, or one of its tables, first")
    page = Page(TITLE, SUBTITLE)
    for backend, written in reports.items():
        _add_overview(page, backend, written)
    for backend, written in reports.items():
        for report in written:
            _add_report(page, backend, report)
    return page.render()


def _add_overview(page: Page, backend: str, reports: Sequence[Written]) -> None:
    page.add_section(f"Verdicts, {SHORT[backend]}", anchor=backend)
    page.add_notice(NOTICES[backend])
    judged = [report for report in reports if report.claims]
    counts = {report.name: Counter(claim[-1] for claim in report.claims) for report in judged}
    verdicts = [REPRODUCED, *sorted({v for count in counts.values() for v in count} - {REPRODUCED})]
    page.add_table(
        ["table or figure", "claims", *verdicts],
        [
            [_link(backend, report, _short(report)), len(report.claims), *(counts[report.name][v] for v in verdicts)]
            for report in judged
        ],
        caption="How many of the paper's claims came out",
    )
    page.add_table(
        ["where", "the paper's claim", "paper", "ours", "verdict"],
        [
            [_link(backend, report, _short(report)), claim, paper, ours, _verdict(verdict)]
            for report in judged
            for claim, paper, ours, verdict in report.claims
        ],
        caption="Every claim",
    )


def _add_report(page: Page, backend: str, report: Written) -> None:
    suffix = "" if backend == "sim" else f", {SHORT[backend]}"
    page.add_section(report.title + suffix, name=_short(report) + suffix, anchor=_anchor(backend, report))
    page.add_notice(report.notice)
    for block in report.blocks:
        match block["kind"]:
            case "text":
                page.add_text(block["text"])
            case "list":
                page.add_list(block["items"], title=block["heading"])
            case "table":
                page.add_table(block["columns"], _cells(block), caption=block["heading"])
                if block["note"]:
                    page.add_text(block["note"])
            case "figure":
                page.add_image(_png(report.path.parent / block["file"]), block["caption"])


def _cells(block: Mapping[str, Any]) -> list[list[Value]]:
    """The table's cells: verdicts have their colour; elsewhere columns of numbers alone sort as such."""
    rows = block["rows"]
    if block["heading"] == VERDICT:
        return [[*row[:-1], _verdict(row[-1])] for row in rows]
    numeric = [all(text == NO_VALUE or NUMBER.match(text) for text in column) for column in zip(*rows, strict=True)]
    return [[Cell(text, _value(text)) if n else text for text, n in zip(row, numeric, strict=True)] for row in rows]


def _verdict(text: str) -> Cell:
    return Cell(text.replace(" ", NO_BREAK), tone=TONES.get(text, ""))


def _value(text: str) -> float:
    found = NUMBER.match(text)
    return float(found[0].replace(",", "").replace("−", "-")) if found else math.nan


def _png(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        raise SystemExit(f"{path}, a figure of a report, is missing: make it again") from None


def _short(report: Written) -> str:
    """'Table 4' of 'Table 4: Aging ...'."""
    return report.title.partition(":")[0].replace(" ", NO_BREAK)


def _anchor(backend: str, report: Written) -> str:
    return f"{backend}-{report.name}"


def _link(backend: str, report: Written, text: str) -> Cell:
    return Cell(text, href=f"#{_anchor(backend, report)}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder (default: %(default)s)")
    results = parser.parse_args(argv).results
    path = results / "index.html"
    write_text(path, index_page(results))
    print(path)


if __name__ == "__main__":
    main()
