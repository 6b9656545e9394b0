"""Seconds by operator, a row a round: the file operators.csv or cpu_operators.csv and its part of the summary.

It knows names and numbers; who measures them does not matter here.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sarathi.metrics.percentiles import describe

KEYS = ("step_id", "replica_id")  # of a round, as in rounds.csv


class OperatorTable:
    """Streams `path`, with times to the nanosecond, and keeps its columns: 8 bytes an operator and round.

    While the run lasts the file is called `path`.part. None writes no file.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else open(path.with_name(path.name + ".part"), "w", encoding="utf-8")
        self._columns: dict[str, array[float]] = {}
        self._row_format = ""

    def add(self, step_id: int, replica_id: int, times: Mapping[str, float]) -> None:
        """A round's seconds by operator; the same operators each time."""
        if not self._columns:
            self._columns = {name: array("d") for name in times}
            self._row_format = ",".join(["%d,%d", *("%.9f" for _ in times)]) + "\n"
            if self._file is not None:
                self._file.write(",".join([*KEYS, *times]) + "\n")
        values = [times[name] for name in self._columns]
        for column, seconds in zip(self._columns.values(), values, strict=True):
            column.append(seconds)
        if self._file is not None:
            self._file.write(self._row_format % (step_id, replica_id, *values))

    def summary(self) -> dict[str, dict[str, Any]]:
        """By operator {mean, p50, ..., max, share}: seconds a round, and its share of all operators' time."""
        columns = {name: np.array(column) for name, column in self._columns.items()}
        total = sum(float(column.sum()) for column in columns.values())
        return {
            name: {**describe(column), "share": float(column.sum()) / total if total else None}
            for name, column in columns.items()
        }

    def close(self) -> None:
        """Complete the file. Without a round it has no operators either."""
        if self._file is None:
            return
        if not self._columns:
            self._file.write(",".join(KEYS) + "\n")
        self._file.close()
        os.replace(self._file.name, self._file.name.removesuffix(".part"))
        self._file = None
