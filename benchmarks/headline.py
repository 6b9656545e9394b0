"""`make headline`: one screen of Markdown, simulated and real apart, of what the reports under results say."""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.harness.options import BACKENDS
from benchmarks.harness.report import NOTICES
from benchmarks.harness.written import ORDER, Written, read_reports

COLUMNS = 120


def headline(results: Path) -> str:
    """What the reports say of themselves; tables that were not made are named."""
    reports = {backend: read_reports(results, backend) for backend in BACKENDS}
    if not any(reports.values()):
        raise SystemExit(f"no reports under {results}: run make paper, or one of its tables, first")
    shown = [backend for backend in BACKENDS if reports[backend] or backend != "cuda"]
    return "\n\n".join("\n".join(_block(backend, reports[backend])) for backend in shown) + "\n"


def _block(backend: str, reports: Sequence[Written]) -> Iterable[str]:
    flag = "" if backend == "sim" else f" BACKEND={backend}"
    yield from (f"**{NOTICES[backend]}**", "")
    for report in (report for report in reports if report.headlines):
        yield _item(f"`make {report.name}{flag}`{_share(report)}: {' '.join(report.headlines)}")
    others = [f"`make {report.name}{flag}`{_share(report)}" for report in reports if not report.headlines]
    if others:
        yield _item(f"Further: {', '.join(others)}.")
    verdicts = Counter(claim[-1] for report in reports for claim in report.claims)
    if verdicts:
        counts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
        brackets = "In brackets: claims of the paper that are reproduced, of those judged."
        yield _item(f"{brackets} All {verdicts.total()}: {counts}.")
    made = {report.name for report in reports}
    missing = [name for name in ORDER if name not in made]
    if missing:
        yield _item(f"Not made yet: `make {' '.join(missing)}{flag}`.")


def _share(report: Written) -> str:
    return f" ({report.num_reproduced}/{len(report.claims)})" if report.claims else ""


def _item(text: str) -> str:
    return textwrap.fill(
        text, COLUMNS, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder (default: %(default)s)")
    print(headline(parser.parse_args(argv).results), end="")


if __name__ == "__main__":
    main()
