"""`make index`: results/index.html, one page of all tables and figures that lie under results, with all verdicts first.

It needs nothing but itself: images lie in the page, and nothing is asked of the network.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness.options import BACKENDS
from benchmarks.harness.report import CLAIM_COLUMNS, LEGEND, NOTICES, VERDICT, is_number
from benchmarks.harness.statistics import (
    DIRECTION,
    NONE,
    NOT_REPRODUCED,
    OPPOSITE,
    PARTLY,
    REPRODUCED,
    UNDECIDED,
    Verdict,
)
from benchmarks.harness.written import VERDICTS, Claim, Written, read_png, read_reports
from sarathi.benchmark.entry_point import exit_status
from sarathi.errors import InputError
from sarathi.metrics.html.page import NO_VALUE, Cell, Page, Tone, Value
from sarathi.metrics.sinks import write_text

TITLE = "The paper's tables and figures beside ours"
SUBTITLE = "Fairness-Aware and Latency-Controllable Scheduling for Chunked-Prefill LLM Serving"
SHORT = {"sim": "simulated", "cpu": "CPU", "cuda": "CUDA"}
TONES: Mapping[Verdict, Tone] = {
    REPRODUCED: "good",
    DIRECTION: "",
    PARTLY: "",
    NONE: "bad",
    OPPOSITE: "bad",
    NOT_REPRODUCED: "bad",
    UNDECIDED: "muted",
}
NO_BREAK = "\u00a0"


def index_page(results: Path) -> str:
    """The page's HTML."""
    reports = {backend: read_reports(results, backend) for backend in BACKENDS}
    reports = {backend: written for backend, written in reports.items() if written}
    if not reports:
        raise InputError(f"no reports under {results}: run make paper, or one of its tables, first")
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
    page.add_table(
        ["table or figure", "reading", "claims", *VERDICTS],
        [
            [
                _link(backend, report, _short(report)),
                _unbroken(reading),
                len(verdicts),
                *map(Counter(verdicts).__getitem__, VERDICTS),
            ]
            for report in judged
            for reading, verdicts in report.by_reading.items()
        ],
        caption="How many of the paper's claims came out, by reading of its setup",
    )
    page.add_text(LEGEND)
    page.add_table(
        ["where", *CLAIM_COLUMNS],
        [[_link(backend, report, _short(report)), *_claim(claim)] for report in judged for claim in report.claims],
        caption="Every claim",
    )


def _add_report(page: Page, backend: str, report: Written) -> None:
    suffix = "" if backend == "sim" else f", {SHORT[backend]}"
    page.add_section(report.title + suffix, name=_short(report) + suffix, anchor=_anchor(backend, report))
    page.add_notice(report.notice)
    if report.headlines:
        page.add_list(report.headlines)
    for block in report.blocks:
        match block["kind"]:
            case "text":
                page.add_text(block["text"])
            case "list":
                page.add_list(block["items"], title=block["heading"])
            case "table":
                is_verdict = block["heading"] == VERDICT
                cells = [*map(_claim, report.claims)] if is_verdict else _cells(block["columns"], block["rows"])
                page.add_table(block["columns"], cells, caption=block["heading"])
                if block["note"]:
                    page.add_text(block["note"])
            case "figure":
                page.add_image(read_png(report.path.parent / block["file"]), block["caption"])


def _claim(claim: Claim) -> list[Value]:
    """Its cells; the verdict has its colour."""
    return [_unbroken(claim.reading), *claim[1:-1], Cell(_unbroken(claim.verdict), tone=TONES[claim.verdict])]


def _cells(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[Value]]:
    """Columns of numbers alone sort as such; readings stay on one line."""
    by_column: list[list[Value]] = []
    for name, texts in zip(columns, zip(*rows, strict=True), strict=False):  # without rows there are no columns
        if name == CLAIM_COLUMNS[0]:
            by_column.append([*map(_unbroken, texts)])
        else:
            is_numeric = all(map(is_number, texts))
            by_column.append([Cell(text, _value(text)) if is_numeric else text for text in texts])
    return [list(row) for row in zip(*by_column, strict=True)]


def _unbroken(text: str) -> str:
    return text.replace(" ", NO_BREAK)


def _value(text: str) -> float:
    """Of a number, which its interval or unit may follow."""
    return math.nan if text == NO_VALUE else float(text.split()[0].replace(",", "").replace("−", "-"))


def _short(report: Written) -> str:
    """'Table 4' of 'Table 4: Aging ...'."""
    return _unbroken(report.title.partition(":")[0])


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
    sys.exit(exit_status(main))
