"""Reads back what a run left in its folder, and is the one place that doubts it: what comes out has the columns, the
kinds and the number of rows that a run writes. Knows the files, not how they came about; pandas is not needed.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from sarathi.errors import FlagError, one_line, shown
from sarathi.metrics.records import REQUEST_COLUMNS, REQUEST_METRICS, ROUND_COLUMNS
from sarathi.metrics.run_summary import check_plain, check_summary
from sarathi.metrics.sinks import TOKEN_GAP_COLUMNS

REQUEST_TEXTS = ("request_id", "status", "finish_reason", "tenant", "ignored_reason")
ROUND_TEXTS = ("prefill_chunks", "reasons")
TABLES = {"requests.csv": REQUEST_COLUMNS, "rounds.csv": ROUND_COLUMNS, "token_gaps.csv": TOKEN_GAP_COLUMNS}
MAX_VALUE = 1e15  # of a cell; up to here every integer is a float

# Cells that may be empty: of any round, of any request, of a finished request. A prediction may be below 0.
_OPTIONAL_IN_ROUNDS = ("predicted_time", "target_time", "prefill_cap")
_NEVER_EMPTY = ("arrival_time", "request_num_prefill_tokens", "replica_id")
_OPTIONAL_WHEN_FINISHED = (
    "request_e2e_time_normalized",
    "decode_time_execution_plus_preemption_normalized",
    "slowdown",
)
_REQUEST_COUNTS = ("request_num_prefill_tokens", "request_num_decode_tokens", "request_num_restarts", "replica_id")
_ROWS_PER_BLOCK = 512  # few enough for the processor's cache


class RunFolder:
    """A finished run: its settings and summary, and its tables, each read when it is first asked for.

    `requests` and `rounds`: an array for each column, floats with NaN for an empty cell, or objects (str) for texts.
    `token_gaps`: (seconds between consecutive output tokens, ascending; how often each occurred).
    A table that is not what a run writes raises ValueError, one line naming the file.
    """

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        summary: dict[str, Any],
        request_columns: Collection[str] = REQUEST_COLUMNS,
        round_columns: Collection[str] = ROUND_COLUMNS,
    ) -> None:
        self.path = path
        self.config = config
        self.summary = summary
        self._request_columns = request_columns
        self._round_columns = round_columns

    @property
    def num_replicas(self) -> int:
        """Of which it holds the records: 1 in the folder of one of several."""
        return max(1, len(self.summary.get("replicas", ())))

    @cached_property
    def requests(self) -> dict[str, np.ndarray]:
        path = self.path / "requests.csv"
        table = read_table(path, REQUEST_TEXTS, {*self._request_columns, "status", "request_num_decode_tokens"})
        is_finished = table["status"] == "finished"
        for name, values in table.items():
            if name in REQUEST_TEXTS:
                continue
            needed = name in REQUEST_METRICS and name not in _OPTIONAL_WHEN_FINISHED
            is_needed = np.ones_like(is_finished) if name in _NEVER_EMPTY else is_finished & needed
            _check_column(path, name, values, is_needed, 0 if name in _REQUEST_COUNTS else -MAX_VALUE)
        self._check_num_rows(path, len(is_finished), "num_requests")
        return table

    @cached_property
    def rounds(self) -> dict[str, np.ndarray]:
        path = self.path / "rounds.csv"
        table = read_table(path, ROUND_TEXTS, {*self._round_columns, "end_time"})
        for name, values in table.items():
            if name not in ROUND_TEXTS:
                is_needed = np.full(len(values), name not in _OPTIONAL_IN_ROUNDS)
                _check_column(path, name, values, is_needed, -MAX_VALUE if name == "predicted_time" else 0)
        if (np.diff(table["end_time"]) < 0).any():
            _refuse(path, "the rounds are not in the order of their end_time")
        self._check_num_rows(path, len(table["end_time"]), "num_rounds")
        return table

    @cached_property
    def token_gaps(self) -> tuple[np.ndarray, np.ndarray]:
        path = self.path / "token_gaps.csv"
        gaps, counts = read_table(path, columns=TOKEN_GAP_COLUMNS).values()
        for name, values, least in zip(TOKEN_GAP_COLUMNS, (gaps, counts), (0, 1), strict=True):
            _check_column(path, name, values, np.ones(len(values), dtype=bool), least)
        if (np.diff(gaps) <= 0).any():
            _refuse(path, "the gaps do not ascend")
        num_tokens = self.requests["request_num_decode_tokens"][self.requests["status"] == "finished"]
        expected = int(np.maximum(num_tokens - 1, 0).sum())
        if int(counts.sum()) != expected:
            _refuse(path, f"{int(counts.sum()):,} gaps between tokens, and by requests.csv there were {expected:,}")
        return gaps, counts

    def _check_num_rows(self, path: Path, num_rows: int, name: str) -> None:
        if num_rows != self.summary[name]:
            _refuse(path, f"{num_rows:,} rows, and {name} in summary.json is {shown(self.summary[name])}")


def read_run(
    path: str | Path,
    request_columns: Collection[str] = REQUEST_COLUMNS,
    round_columns: Collection[str] = ROUND_COLUMNS,
) -> RunFolder:
    """The run in folder `path`, of whose tables the named columns are read, and those that their checks need.

    Raises ValueError, one line that names what is missing or broken.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            _refuse(path, "not a folder; a run's folder, which holds summary.json, is needed")
        if not (path / "summary.json").is_file():
            why = "the run is not finished" if list(path.glob("*.part")) else "no run's folder"
            _refuse(path, f"holds no summary.json: {why}")
        summary = _read_summary(path / "summary.json")
        config = _read_config(path / "config.yaml") if (path / "config.yaml").is_file() else {}
        for name, columns in TABLES.items():
            _check_ends(path / name, columns)
    except OSError as error:
        _refuse(path, f"cannot be read ({error.strerror or error})")
    return RunFolder(path, config, summary, request_columns, round_columns)


def read_table(path: Path, texts: Sequence[str] = (), columns: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Columns of a CSV file with a header, all or those named, in the file's order: those in `texts` as str, others as
    floats, NaN where a cell is empty.

    Raises ValueError, one line naming file and column or line.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            _check_header(path, header, columns or ())
            places = {name: i for i, name in enumerate(header) if columns is None or name in columns}
            parts = {name: [np.empty(0, object if name in texts else float)] for name in places}
            checked = _checked(rows, len(header), path)
            while block := list(islice(checked, _ROWS_PER_BLOCK)):
                for name, i in places.items():
                    parts[name].append(_column(name, [row[i] for row in block], name in texts, path))
    except OSError as error:
        _refuse(path, f"cannot be read ({error.strerror})")
    except (csv.Error, UnicodeDecodeError) as error:
        _refuse(path, f"no CSV file ({error})")
    return {name: np.concatenate(part) for name, part in parts.items()}


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        _refuse(path, "nested too deeply")
    except ValueError as error:
        _refuse(path, f"no JSON ({error})")
    try:
        check_plain(summary)
        check_summary(summary)
    except ValueError as error:
        _refuse(path, str(error))
    return summary


def _read_config(path: Path) -> dict[str, Any]:
    from sarathi.config.yaml_file import read_yaml

    try:
        config = read_yaml(str(path))
    except FlagError as error:
        raise ValueError(str(error).removeprefix("--config: ")) from None
    try:
        check_plain(config)
    except ValueError as error:
        _refuse(path, str(error))
    return config


def _check_ends(path: Path, columns: Sequence[str]) -> None:
    """A table has its columns, and its last line an end."""
    if not path.is_file():
        _refuse(path.parent, f"holds no {path.name}")
    with open(path, "rb") as file:
        header = file.readline()
        file.seek(-min(1, len(header)), os.SEEK_END)
        last = file.read()
    _check_header(path, header.decode("utf-8", "replace").strip().split(","), columns)
    if last != b"\n":
        _refuse(path, "its last line is cut off")


def _check_header(path: Path, header: Sequence[str], columns: Collection[str]) -> None:
    if missing := [name for name in columns if name not in header]:
        _refuse(path, f"lacks column {', '.join(sorted(missing))}")


def _checked(rows: Any, width: int, path: Path) -> Iterator[list[str]]:
    for row in rows:
        if len(row) != width:
            _refuse(path, f"line {rows.line_num}: {len(row)} cells, the header has {width}")
        yield row


def _column(name: str, cells: list[str], is_text: bool, path: Path) -> np.ndarray:
    if is_text:
        return np.array(cells, dtype=object)
    try:
        return np.fromiter(map(float, cells), float, len(cells))
    except ValueError:  # some cell is empty, or wrong
        pass
    try:
        return np.array([float(cell) if cell else math.nan for cell in cells])
    except ValueError as error:
        _refuse(path, f"column {name}: {error}")


def _check_column(path: Path, name: str, values: np.ndarray, is_needed: np.ndarray, least: float) -> None:
    wrong = np.where(np.isnan(values), is_needed, ~((values >= least) & (values <= MAX_VALUE)))
    if wrong.any():
        row = int(np.argmax(wrong))
        what = "empty" if np.isnan(values[row]) else f"{values[row]:g}"
        _refuse(path, f"column {name} is {what} in row {row + 1}; a number from {least:g} to {MAX_VALUE:g} is needed")


def _refuse(path: Path, problem: str) -> NoReturn:
    raise ValueError(one_line(f"{path}: {problem}")) from None
