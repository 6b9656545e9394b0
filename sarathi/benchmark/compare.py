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
from typing import TYPE_CHECKING, NamedTuple

from sarathi.benchmark.entry_point import CommandParser, exit_status
from sarathi.errors import FlagError, InputError, one_line

if TYPE_CHECKING:
    from sarathi.comparison.comparison import Comparison
    from sarathi.comparison.groups import Entry
    from sarathi.comparison.run import ComparedRun

logger = logging.getLogger("compare")  # __name__ is "__main__" where this is the command
PROGRAM = "python -m sarathi.benchmark.compare"
OWN_FILES = ("comparison.csv", "comparison.html", "comparison.png")  # the last by the shootout
ABOUT = """Runs beside each other: a table here, comparison.csv, and comparison.html to look at.

RUN is a run's folder, or a folder of such folders, all of which are taken. Runs that differ by seed alone are one row,
with means over seeds and 95 % bootstrap intervals."""


def compare(
    paths: Sequence[str | Path], baseline: str | Path | None = None, *, skip_incomplete: bool = False
) -> Comparison:
    """The runs in the folders `paths`, each a run's or one of runs, against `baseline`: a folder or a row's label.

    The first run, or what it is a seed of, is the baseline where none is named. Raises InputError, one line that
    names the folder and what is missing or broken; `skip_incomplete` leaves such runs out with a warning.
    """
    return _compared(_found(paths, baseline, skip_incomplete), baseline, skip_incomplete)


class _Found(NamedTuple):
    folders: list[Path]  # of all runs, each once
    wanted: set[Path]  # of the baseline's, resolved; empty where it is no folder


def _found(paths: Sequence[str | Path], baseline: str | Path | None, skip_incomplete: bool) -> _Found:
    folders = [folder for path in paths for folder in find_runs(Path(path), skip_incomplete)]
    wanted = find_runs(Path(baseline), skip_incomplete) if baseline is not None and os.path.isdir(baseline) else []
    unique = {folder.resolve(): folder for folder in [*folders, *wanted]}
    return _Found(list(unique.values()), {folder.resolve() for folder in wanted})


def _compared(
    found: _Found,
    baseline: str | Path | None,
    skip_incomplete: bool,
    on_progress: Callable[[int], None] = lambda num_read: None,
) -> Comparison:
    from sarathi.comparison.comparison import compare_entries
    from sarathi.comparison.groups import make_entries

    runs = _load(found.folders, skip_incomplete, on_progress)
    if len(runs) < 2:
        there = f"only {runs[0].path}" if runs else "none"
        raise InputError(f"two runs or more are needed to compare, and there is {there}")
    entries = make_entries(runs)
    return compare_entries(entries, _baseline_of(entries, baseline, found.wanted))


def find_runs(path: Path, skip_incomplete: bool = False) -> list[Path]:
    """`path` itself where it is a run's folder, else the runs' folders in it, in order of name.

    Nothing where it is of an earlier comparison. Raises InputError, one line, where there is no run.
    """
    if not os.path.isdir(path):
        if path.name in OWN_FILES and os.path.isfile(path):
            logger.warning("passed over: %s is of a comparison", path)
            return []
        raise InputError(f"{path} is not a folder; a run's folder, or a folder of runs, is needed")
    if _is_run(path):
        return [path]
    try:
        found = sorted(folder for folder in path.iterdir() if _is_run(folder))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    if found:
        return found
    if any(os.path.isfile(path / name) for name in OWN_FILES):
        logger.warning("passed over: %s holds a comparison and no run", path)
    elif skip_incomplete:
        logger.warning("left out: %s holds no run", path)
    else:
        raise InputError(f"{path} holds no summary.json, and no folder in it does: no run's folder, and no runs in it")
    return []


def _is_run(folder: Path) -> bool:
    """Whether a run has its files there, finished or not."""
    return any(os.path.isfile(folder / name) for name in ("summary.json", "config.yaml", "rounds.csv.part"))


def _load(folders: Sequence[Path], skip_incomplete: bool, on_progress: Callable[[int], None]) -> list[ComparedRun]:
    from sarathi.comparison.run import load_run

    runs = []
    for i, folder in enumerate(folders):
        try:
            runs.append(load_run(folder))
        except ValueError as error:
            if not skip_incomplete:
                raise InputError(f"{error}; --skip-incomplete leaves such runs out") from None
            logger.warning("left out: %s", one_line(str(error)))
        on_progress(i + 1)
    return runs


def _baseline_of(entries: Sequence[Entry], baseline: str | Path | None, wanted: set[Path]) -> Entry:
    if baseline is None:
        return entries[0]
    labels = [entry.label for entry in entries]
    if str(baseline) in labels:
        return entries[labels.index(str(baseline))]
    if not wanted:
        raise FlagError("baseline", f"{baseline} is no folder with a run, and no row; rows are {', '.join(labels)}")
    holding = [entry for entry in entries if wanted & {run.path.resolve() for run in entry.runs}]
    exact = [entry for entry in holding if wanted == {run.path.resolve() for run in entry.runs}]
    if not exact and len(holding) > 1 and len(wanted) > 1:
        several = ", ".join(entry.label for entry in holding)
        raise FlagError("baseline", f"{baseline} holds several rows ({several}); name one run or row")
    if not holding:  # all of them left out
        raise FlagError("baseline", f"{baseline} holds no run that can be read")
    return (exact or holding)[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for a folder that is no run's, with one line that names it."""
    return exit_status(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
    from sarathi.benchmark.progress import progress_bar
    from sarathi.comparison.text import terminal_tables

    args = _parser().parse_args(argv)
    found = _found(args.runs, args.baseline, args.skip_incomplete)
    csv_path, html_path = _output_paths(args, found.folders)
    with progress_bar(len(found.folders), "reading", "run") as on_progress:
        comparison = _compared(found, args.baseline, args.skip_incomplete, on_progress)
    for warning in comparison.warnings:
        logger.warning("%s", warning)
    num_runs = len({run.path for entry in comparison.entries for run in entry.runs})
    print(f"{num_runs} runs; changes are against {comparison.baseline.label}\n")
    print(f"{terminal_tables(comparison)}\n", flush=True)
    for line in write_comparison(comparison, csv_path, html_path):
        print(line)


def write_comparison(comparison: Comparison, csv_path: Path, html_path: Path) -> list[str]:
    """Write the table and, where plotly is installed, the page; a line for each, saying where it is.

    Raises InputError, one line, before anything is written where one of them cannot be.
    """
    from sarathi.comparison.output import are_apart, target_of, write_files
    from sarathi.comparison.page import comparison_page
    from sarathi.comparison.text import csv_text, encodable

    table, page = target_of(csv_path), target_of(html_path)
    if not are_apart(table, page):
        raise InputError(f"{csv_path} and {html_path} cannot both be written: they are in each other's way")
    texts, lines = [(table, csv_text(comparison))], [f"table: {csv_path}"]
    try:
        texts.append((page, encodable(comparison_page(comparison, page.parent).render())))
        lines.append(f"page:  {html_path}")
    except ImportError as error:
        logger.warning("no page: %s", error)
    write_files(texts)
    return lines


def _output_paths(args: argparse.Namespace, runs: Sequence[Path]) -> tuple[Path, Path]:
    """Of table and page. Raises InputError, one line, for one that cannot be written or lies in a run's folder."""
    from sarathi.comparison.output import are_apart, target_of

    directory = Path(args.output_dir) if args.output_dir else _default_directory(runs)
    paths, targets = [], []
    for flag, name in (("csv", "comparison.csv"), ("html", "comparison.html")):
        given = getattr(args, flag)
        paths.append(path := Path(given) if given else directory / name)
        try:
            targets.append(target := target_of(path))
            if any(target.is_relative_to(run.resolve()) for run in runs):
                raise InputError(f"{path} would lie in a run's folder, and these are left as they are")
        except InputError as error:
            if not given and not args.output_dir:
                raise
            raise FlagError(flag if given else "output-dir", str(error)) from None
    if not are_apart(*targets):
        raise FlagError("html", f"{paths[1]} and --csv {paths[0]} cannot both be written: they are in each other's way")
    return paths[0], paths[1]


def _default_directory(runs: Sequence[Path]) -> Path:
    """A new folder beside the runs, else beside the folders that hold them, else in the current one."""
    from sarathi.clock import calendar_stamp

    parents = {run.resolve().parent for run in runs}
    holders = {parent.parent for parent in parents} if len(parents) > 1 else parents
    here = Path.cwd()
    place = holders.pop() if len(holders) == 1 else here
    directory = place / f"comparison_{calendar_stamp()}"
    return Path(os.path.relpath(directory)) if directory.is_relative_to(here) else directory


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
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
