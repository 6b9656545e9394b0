"""`python -m sarathi.benchmark.report_html RUN...`: write report.html of runs again, from what their folders hold."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sarathi.benchmark.entry_point import BAD_SETTING, CommandParser, exit_status
from sarathi.errors import one_line


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 where a folder holds no finished run, with one line that says why."""
    failed = False

    def write() -> None:
        nonlocal failed
        from sarathi.metrics.html.run_report import write_run_report

        for run in _parser().parse_args(argv).runs:
            try:
                print(write_run_report(run), flush=True)
            except (ValueError, ImportError) as error:
                print(one_line(f"error: {error}"), file=sys.stderr)
                failed = True

    return exit_status(write) or (BAD_SETTING if failed else 0)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m sarathi.benchmark.report_html",
        description="Write report.html of finished runs again, from what their folders hold.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run, which holds summary.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
