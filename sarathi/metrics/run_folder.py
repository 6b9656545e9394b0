"""Reads back what a run left in its folder. Knows the files, not how they came about; pandas is not needed."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sarathi.metrics.sinks import TOKEN_GAP_COLUMNS

REQUEST_TEXTS = ("request_id", "status", "finish_reason", "tenant", "ignored_reason")
ROUND_TEXTS = ("prefill_chunks", "reasons")


class RunFolder:
    """A finished run: its settings and summary, and its tables, each read when it is first asked for.

    `requests` and `rounds`: an array for each column, floats with NaN for an empty cell, or objects (str) for texts.
    `token_gaps`: (seconds between consecutive output tokens, ascending; how often each occurred).
    A table that cannot be read raises ValueError, one line naming the file.
    """

    def __init__(self, path: Path, config: dict[str, Any], summary: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.summary = summary

    @cached_property
    def requests(self) -> dict[str, np.ndarray]:
        return read_table(self.path / "requests.csv", REQUEST_TEXTS)

    @cached_property
    def rounds(self) -> dict[str, np.ndarray]:
        return read_table(self.path / "rounds.csv", ROUND_TEXTS)

    @cached_property
    def token_gaps(self) -> tuple[np.ndarray, np.ndarray]:
        gaps, counts = (read_table(self.path / "token_gaps.csv")[name] for name in TOKEN_GAP_COLUMNS)
        return gaps, counts


def read_run(path: str | Path) -> RunFolder:
    """The run in folder `path`. Raises ValueError, one line that names what is missing or broken."""
    import yaml

    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; a run's folder, which holds summary.json, is needed")
    if not (path / "summary.json").is_file():
        why = "the run is not finished" if list(path.glob("*.part")) else "no run's folder"
        raise ValueError(f"{path} holds no summary.json: {why}")
    try:
        summary = json.loads(_text(path / "summary.json"))
        config = yaml.safe_load(_text(path / "config.yaml")) if (path / "config.yaml").is_file() else {}
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: summary.json or config.yaml is broken ({str(error).splitlines()[0]})") from None
    if not isinstance(summary, dict) or not isinstance(config, dict):
        raise ValueError(f"{path}: summary.json or config.yaml holds no mapping")
    for name in ("requests.csv", "rounds.csv", "token_gaps.csv"):
        if not (path / name).is_file():
            raise ValueError(f"{path} holds no {name}")
    return RunFolder(path, config, summary)


def read_table(path: Path, texts: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The columns of a CSV file with a header: those in `texts` as str, others as floats, NaN where a cell is empty.

    Raises ValueError, one line naming file and column or line.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            columns = list(zip(*_checked(rows, len(header), path), strict=True)) or [()] * len(header)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no CSV file ({error})") from None
    return {name: _column(name, cells, name in texts, path) for name, cells in zip(header, columns, strict=True)}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None


def _checked(rows: Any, width: int, path: Path) -> Iterator[list[str]]:
    for row in rows:
        if len(row) != width:
            raise ValueError(f"{path}, line {rows.line_num}: {len(row)} cells, the header has {width}")
        yield row


def _column(name: str, cells: Sequence[str], is_text: bool, path: Path) -> np.ndarray:
    if is_text:
        return np.array(cells, dtype=object)
    try:
        return np.array([cell or "nan" for cell in cells], dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{path}, column {name}: {error}") from None
