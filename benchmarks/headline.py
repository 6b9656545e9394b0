"""`make headline`: one screen of Markdown, simulated and real apart, of what the reports under results say."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.options import BACKENDS
from benchmarks.harness.report import NOTICES
from benchmarks.harness.written import ORDER, VERDICTS, Written, read_reports
from sarathi.benchmark.entry_point import exit_status
from sarathi.errors import InputError

LINES, COLUMNS = 35, 120  # of a screen
LEGEND = "In brackets: how many of the paper's claims come out in some reading of its setup, of those that are judged."


def headline(results: Path) -> str:
    """What the reports say of themselves; tables that were not made are named."""
    reports = {backend: read_reports(results, backend) for backend in BACKENDS}
    if not any(reports.values()):
        raise InputError(f"no reports under {results}: run make paper, or one of its tables, first")
    shown = [backend for backend in BACKENDS if reports[backend] or backend != "cuda"]
    around = {backend: _around(backend, reports[backend]) for backend in shown}
    num_around = sum(len([*above, *below]) for above, below in around.values())
    forms = {backend: [_forms(report) for report in reports[backend] if report.headlines] for backend in shown}
    _fit([one for of in forms.values() for one in of], LINES - num_around - 1 - len(shown))
    blocks = [LEGEND]
    for backend in shown:
        above, below = around[backend]
        blocks.append("\n".join([*above, *(line for report in forms[backend] for line in report[0]), *below]))
    return "\n\n".join(blocks) + "\n"


def _around(backend: str, reports: Sequence[Written]) -> tuple[list[str], list[str]]:
    """The lines above and below those of a backend's reports that have headlines."""
    flag = "" if backend == "sim" else f" BACKEND={backend}"
    below: list[str] = []
    others = [f"{report.name}{_share(report)}" for report in reports if not report.headlines]
    if others:
        below += _item(f"Further: {', '.join(others)}.")
    counts = Counter(claim.verdict for report in reports for claim in report.claims)
    if counts:
        told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
        below += _item(f"All {counts.total()} claims in all readings: {told}.")
    made = {report.name for report in reports}
    missing = [name for name in ORDER if name not in made]
    if missing:
        below += _item(f"Not made yet: `make {' '.join(missing)}{flag}`.")
    return [f"**{NOTICES[backend]}** `make NAME{flag}`", ""], below


def _forms(report: Written) -> list[list[str]]:
    """A report's lines, ever fewer: all its headlines, the first sentence alone, and of that what fits on one line,
    up to where it pauses."""
    head, first = f"{report.name}{_share(report)}: ", report.headlines[0]
    room = COLUMNS - len(f"- {head}, ...")
    pause = re.match(rf".{{{room // 2},{room}}}(?=[,;] )", first)
    short = f"{pause[0]}, ..." if pause else textwrap.shorten(first, room, placeholder=" ...")
    return [_item(head + text) for text in (" ".join(report.headlines), first, short)]


def _fit(reports: Sequence[list[list[str]]], num_lines: int) -> None:
    """Drop the first form of the longest report, of the last of those, until all of them take no more lines."""
    while sum(len(forms[0]) for forms in reports) > num_lines:
        cuttable = [forms for forms in reversed(reports) if len(forms) > 1]
        if not cuttable:
            return
        del max(cuttable, key=lambda forms: len(forms[0]))[0]


def _share(report: Written) -> str:
    """As the legend says."""
    if not report.claims:
        return ""
    held, judged = report.held
    return f" ({held}/{judged})"


def _item(text: str) -> list[str]:
    return textwrap.wrap(
        text, COLUMNS, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder (default: %(default)s)")
    print(headline(parser.parse_args(argv).results), end="")


if __name__ == "__main__":
    sys.exit(exit_status(main))
