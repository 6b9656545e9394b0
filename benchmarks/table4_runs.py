"""What `make table4` wrote, for the figures that are drawn from it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.options import Options
from benchmarks.harness.statistics import Mean, fit_offset, mean_of
from benchmarks.paper import row
from benchmarks.table4 import ALPHA, COLUMNS

FIRST = "exact"  # the reading whose level is the paper's but for a constant
READINGS = {
    FIRST: {"reading": FIRST, "seqs": "10", "profile": "lean", "alpha": str(ALPHA)},
    "full, KV unbound": {"reading": "full, KV unbound", "profile": "lean", "alpha": str(ALPHA)},
    "full": {"reading": "full", "profile": "lean", "alpha": str(ALPHA)},
}
Rows = Sequence[Mapping[str, str]]


class Table4Runs:
    """Figures by reading, chunk size and policy. A line for the user, with make's target, where they are missing."""

    def __init__(self, options: Options) -> None:
        self._path = options.directory / "table4-runs.csv"
        self._make = f"make table4{'' if options.backend == 'sim' else f' BACKEND={options.backend}'}"
        if options.quick:
            self._make = f"python -m benchmarks.table4 --quick --backend {options.backend}"
        self._runs = self._read(self._path)
        self._requests = self._read(options.directory / "table4-e2e.csv")
        self.has_level = options.backend == "sim"  # elsewhere neither the model nor the workload's size is the paper's
        self.readings = (FIRST, "full, KV unbound" if self.has_level else "full")

    def values(self, reading: str, chunk: int, policy: str, column: str) -> list[float]:
        """By seed."""
        return [float(run[column]) for run in self._select(self._runs, reading, chunk, policy)]

    def mean(self, reading: str, chunk: int, policy: str, column: str) -> Mean:
        return mean_of(self.values(reading, chunk, policy, column))

    def e2e(self, reading: str, policy: str) -> list[np.ndarray]:
        """Seconds of each request at chunk 256 in order of arrival, by seed."""
        by_seed: dict[str, list[float]] = {}
        for request in self._select(self._requests, reading, 256, policy):
            by_seed.setdefault(request["seed"], []).append(float(request["e2e_s"]))
        return [np.array(values) for values in by_seed.values()]

    def constant(self, chunk: int, policy: str) -> float:
        """What brings the four latencies of the first reading closest to the paper's."""
        theirs = row("table4", chunk=chunk, policy=policy)
        ours = [self.mean(FIRST, chunk, policy, column).value for column in COLUMNS]
        return fit_offset([theirs[column] for column in COLUMNS], ours).constant

    def _select(self, table: Rows, reading: str, chunk: int, policy: str) -> Rows:
        wanted = {**READINGS[reading], "chunk": str(chunk), "policy": policy}
        found = [line for line in table if wanted.items() <= line.items()]
        if not found or "seed" not in found[0]:
            raise SystemExit(f"{self._path} has no rows with {wanted}: run {self._make} again")
        return found

    def _read(self, path: Path) -> Rows:
        if not path.is_file():
            raise SystemExit(f"{path} is missing: run {self._make} first")
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
