"""What `make table4` wrote, for the figures that are drawn from it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.options import Options
from benchmarks.harness.statistics import Mean, fit_offset, mean_of
from benchmarks.paper import row
from benchmarks.table4_readings import ALPHA, COLUMNS, POLICIES
from sarathi.errors import InputError, shown

FIRST = "exact"  # the reading whose level is the paper's but for a constant
READINGS = {
    FIRST: {"reading": FIRST, "seqs": "10", "profile": "lean", "alpha": str(ALPHA)},
    "full, KV unbound": {"reading": "full, KV unbound", "profile": "lean", "alpha": str(ALPHA)},
    "full": {"reading": "full", "profile": "lean", "alpha": str(ALPHA)},
}
Row = Mapping[str, str]


class Table4Runs:
    """Figures by reading, chunk size and policy. A line for the user, with make's target, where they are missing."""

    def __init__(self, options: Options) -> None:
        make = f"make table4{'' if options.backend == 'sim' else f' BACKEND={options.backend}'}"
        if options.quick:
            make = f"python -m benchmarks.table4 --quick --backend {options.backend}"
        self._runs = _Csv(options.directory / "table4-runs.csv", make)
        self._requests = _Csv(options.directory / "table4-e2e.csv", make)
        self.has_level = options.backend == "sim"  # elsewhere neither the model nor the workload's size is the paper's
        self.readings = (FIRST, "full, KV unbound" if self.has_level else "full")

    def values(self, reading: str, chunk: int, policy: str, column: str) -> list[float]:
        """By seed."""
        return [self._runs.number(run, column) for run in self._runs.select(reading, chunk, policy)]

    def mean(self, reading: str, chunk: int, policy: str, column: str) -> Mean:
        return mean_of(self.values(reading, chunk, policy, column))

    def e2e(self, reading: str, policy: str) -> list[np.ndarray]:
        """Seconds of each request at chunk 256 in order of arrival, by seed."""
        by_seed: dict[float, list[float]] = {}
        for request in self._requests.select(reading, 256, policy):
            seed, seconds = (self._requests.number(request, column) for column in ("seed", "e2e_s"))
            by_seed.setdefault(seed, []).append(seconds)
        return [np.array(values) for values in by_seed.values()]

    def constant(self, chunk: int, policy: str) -> float:
        """What brings the four latencies of the first reading closest to the paper's."""
        theirs = row("table4", chunk=chunk, policy=policy)
        ours = [self.mean(FIRST, chunk, policy, column).value for column in COLUMNS]
        return fit_offset([theirs[column] for column in COLUMNS], ours).constant


class _Csv:
    """A file of Table 4's; what it lacks is a line for the user, which names it."""

    def __init__(self, path: Path, make: str) -> None:
        self._path, self._make = path, make
        if not path.is_file():
            raise InputError(f"{path} is missing: run {make} first")
        try:
            with path.open(newline="", encoding="utf-8") as file:
                self._rows: Sequence[Row] = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path} is no CSV file ({error}); run {make} again") from None

    def select(self, reading: str, chunk: int, policy: str) -> Sequence[Row]:
        """Of which each policy has as many, so that they can be paired."""
        wanted = {**READINGS[reading], "chunk": str(chunk)}
        rows = [row for row in self._rows if wanted.items() <= row.items()]
        found = {name: [row for row in rows if row.get("policy") == name] for name in POLICIES}
        counts = {name: len(of) for name, of in found.items()}
        if not all(counts.values()) or len({*counts.values()}) > 1:
            raise InputError(f"{self._path}: {counts} rows with {wanted}; run {self._make} again")
        return found[policy]

    def number(self, row: Row, column: str) -> float:
        """A cell, which is a finite number."""
        text = row.get(column)
        try:
            value = float(text or "")
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{self._path}, column {column}: {shown(text)} is no number; run {self._make} again")
        return value
