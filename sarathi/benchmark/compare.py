"""`python -m sarathi.benchmark.compare RUN RUN ...`: runs beside each other, as a table, a CSV file and a page.

Reads runs' folders and never writes into them.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sarathi.benchmark.entry_point import BAD_SETTING, exit_status

if TYPE_CHECKING:
    from sarathi.metrics.compared_groups import Entry
    from sarathi.metrics.compared_run import ComparedRun
    from sarathi.metrics.comparison import Comparison

logger = logging.getLogger(__name__)
PROGRAM = "python -m sarathi.benchmark.compare"
ABOUT = """Runs beside each other: a table here, comparison.csv, and comparison.html to look at.

RUN is a run's folder, or a folder of such folders, all of which are taken. Runs that differ by seed alone are one row,
with means over seeds and 95 % bootstrap intervals."""


def compare(
    paths: Sequence[str | Path],
    baseline: str | Path | None = None,
    *,
    skip_incomplete: bool = False,
    on_progress: Callable[[int], None] = lambda num_read: None,
) -> Comparison:
    """The runs in the folders `paths`, each a run's or one of runs, against `baseline`: a folder or a row's label.

    The first run, or what it is a seed of, is the baseline where none is named. Raises ValueError, one line that
    names the folder and what is missing or broken; `skip_incomplete` leaves such runs out with a warning.
    """
    from sarathi.metrics.compared_groups import make_entries
    from sarathi.metrics.comparison import compare_entries

    folders = [folder for path in paths for folder in find_runs(Path(path), skip_incomplete)]
    wanted = find_runs(Path(baseline), skip_incomplete) if baseline is not None and Path(baseline).is_dir() else []
    unique = {folder.resolve(): folder for folder in [*folders, *wanted]}
    runs = _load(list(unique.values()), skip_incomplete, on_progress)
    if len(runs) < 2:
        found = f"only {runs[0].path}" if runs else "none"
        raise ValueError(f"two runs or more are needed to compare, and there is {found}")
    entries = make_entries(runs)
    return compare_entries(entries, _baseline_of(entries, baseline, {folder.resolve() for folder in wanted}))


def find_runs(path: Path, skip_incomplete: bool = False) -> list[Path]:
    """`path` itself where it is a run's folder, else the runs' folders in it, in order of name.

    Raises ValueError, one line, where there is none.
    """
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; a run's folder, or a folder of runs, is needed")
    if _is_run(path):
        return [path]
    found = sorted(folder for folder in path.iterdir() if folder.is_dir() and _is_run(folder))
    if not found and not skip_incomplete:
        raise ValueError(f"{path} holds no summary.json, and no folder in it does: no run's folder, and no runs in it")
    return found


def _is_run(folder: Path) -> bool:
    """Whether a run has its files there, finished or not."""
    return any((folder / name).is_file() for name in ("summary.json", "config.yaml", "rounds.csv.part"))


def _load(folders: Sequence[Path], skip_incomplete: bool, on_progress: Callable[[int], None]) -> list[ComparedRun]:
    from sarathi.metrics.compared_run import load_run

    runs = []
    for i, folder in enumerate(folders):
        try:
            runs.append(load_run(folder))
        except ValueError as error:
            if not skip_incomplete:
                raise ValueError(f"{error}; --skip-incomplete leaves such runs out") from None
            logger.warning("left out: %s", error)
        on_progress(i + 1)
    return runs


def _baseline_of(entries: Sequence[Entry], baseline: str | Path | None, wanted: set[Path]) -> Entry:
    if baseline is None:
        return entries[0]
    labels = [entry.label for entry in entries]
    if str(baseline) in labels:
        return entries[labels.index(str(baseline))]
    if not wanted:
        raise ValueError(f"--baseline: {baseline} is no folder with a run, and no row; rows are {', '.join(labels)}")
    holding = [entry for entry in entries if wanted & {run.path.resolve() for run in entry.runs}]
    exact = [entry for entry in holding if wanted == {run.path.resolve() for run in entry.runs}]
    if not exact and len(holding) > 1 and len(wanted) > 1:
        several = ", ".join(entry.label for entry in holding)
        raise ValueError(f"--baseline: {baseline} holds several rows ({several}); name one run or row")
    return (exact or holding)[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for a folder that is no run's, with one line that names it."""
    return exit_status(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
    from sarathi.benchmark.comparison_text import terminal_tables
    from sarathi.benchmark.progress import progress_bar

    try:
        args = _parser().parse_args(argv)
        num_runs = sum(len(find_runs(Path(path), args.skip_incomplete)) for path in args.runs)
        with progress_bar(num_runs, "reading", "run") as on_progress:
            comparison = compare(
                args.runs, args.baseline, skip_incomplete=args.skip_incomplete, on_progress=on_progress
            )
        csv_path, html_path = _output_paths(args, [run.path for entry in comparison.entries for run in entry.runs])
    except ValueError as error:
        _exit(str(error))
    for warning in comparison.warnings:
        logger.warning("%s", warning)
    num_runs = len({run.path for entry in comparison.entries for run in entry.runs})
    print(f"{num_runs} runs; changes are against {comparison.baseline.label}\n")
    print(f"{terminal_tables(comparison)}\n", flush=True)
    for line in write_comparison(comparison, csv_path, html_path):
        print(line)


def write_comparison(comparison: Comparison, csv_path: Path, html_path: Path) -> list[str]:
    """Write the table and, where plotly is installed, the page; a line for each, saying where it is."""
    from sarathi.benchmark.comparison_text import csv_text
    from sarathi.metrics.html.comparison_page import comparison_page

    _write(csv_path, csv_text(comparison))
    lines = [f"table: {csv_path}"]
    try:
        page = comparison_page(comparison, html_path.parent).render()
    except ImportError as error:
        logger.warning("no page: %s", error)
        return lines
    _write(html_path, page)
    return [*lines, f"page:  {html_path}"]


def _exit(text: str) -> NoReturn:
    from sarathi.errors import one_line

    print("error:", one_line(text), file=sys.stderr)
    raise SystemExit(BAD_SETTING)


def _write(path: Path, text: str) -> None:
    from sarathi.metrics.sinks import write_text

    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def _output_paths(args: argparse.Namespace, runs: Sequence[Path]) -> tuple[Path, Path]:
    """Of table and page. Raises ValueError, one line, for one in a run's folder."""
    directory = Path(args.output_dir) if args.output_dir else _default_directory(runs)
    paths = Path(args.csv or directory / "comparison.csv"), Path(args.html or directory / "comparison.html")
    for path in paths:
        for run in runs:
            if path.resolve().is_relative_to(run.resolve()):
                raise ValueError(f"{path} would lie in a run's folder, and these are left as they are")
    return paths


def _default_directory(runs: Sequence[Path]) -> Path:
    """A new folder beside the runs, else beside the folders that hold them, else in the current one."""
    from sarathi.clock import calendar_stamp

    parents = {run.resolve().parent for run in runs}
    holders = {parent.parent for parent in parents} if len(parents) > 1 else parents
    here = Path.cwd()
    place = holders.pop() if len(holders) == 1 else here
    directory = place / f"comparison_{calendar_stamp()}"
    return Path(os.path.relpath(directory)) if directory.is_relative_to(here) else directory


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM, description=ABOUT, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a folder of runs")
    parser.add_argument("--baseline", metavar="RUN", help="folder or row that changes are against (default: the first)")
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="where comparison.csv and comparison.html go (default: a new folder comparison_<time> beside the runs, or "
        "beside the folders that hold them, else in the current one)",
    )
    parser.add_argument("--html", metavar="FILE", help="the page, in place of DIR/comparison.html")
    parser.add_argument("--csv", metavar="FILE", help="the table, in place of DIR/comparison.csv")
    parser.add_argument("--skip-incomplete", action="store_true", help="leave out runs that are unfinished or broken")
    return parser


if __name__ == "__main__":
    sys.exit(main())
