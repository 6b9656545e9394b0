"""Several replicas' records as those of one run: columns in memory, and tables on disk."""

from __future__ import annotations

import csv
import heapq
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sarathi.metrics.percentiles import merge_counted
from sarathi.metrics.records import REQUEST_COLUMNS, ROUND_COLUMNS, RunData
from sarathi.metrics.slo import SloCounts

TOTALS = ("num_waiting", "num_running")  # of all replicas at that instant, in the merged columns


def merge_runs(parts: Sequence[RunData], metadata: Mapping[str, object]) -> RunData:
    """One run of all replicas' rounds, in order of their ends, and requests. `num_waiting` and `num_running` become
    sums over the replicas."""
    order = np.argsort(np.concatenate([part.rounds["end_time"] for part in parts]), kind="stable")
    replicas = np.repeat(np.arange(len(parts)), [len(part.rounds["end_time"]) for part in parts])[order]
    rounds = {name: np.concatenate([part.rounds[name] for part in parts])[order] for name in parts[0].rounds}
    rounds |= {name: total_over_replicas(rounds[name], replicas) for name in TOTALS}
    slo: dict[str, SloCounts] = {}
    for part in parts:
        for tenant, counts in part.slo.items():
            slo[tenant] = slo.get(tenant, SloCounts()) + counts
    return RunData(
        metadata=dict(metadata),
        rounds=rounds,
        requests={name: np.concatenate([part.requests[name] for part in parts]) for name in parts[0].requests},
        token_gaps=merge_counted([part.token_gaps for part in parts]),
        num_by_status=_sums(part.num_by_status for part in parts),
        num_preemptions=sum(part.num_preemptions for part in parts),
        num_starved_rounds=sum(part.num_starved_rounds for part in parts),
        reasons=_sums(part.reasons for part in parts),
        first_arrival_time=_of_known(min, (part.first_arrival_time for part in parts)),
        first_ignored=next((part.first_ignored for part in parts if part.first_ignored), None),
        unfinished_waiting_time=_of_known(max, (part.unfinished_waiting_time for part in parts)),
        unfinished_scheduling_delay=_of_known(max, (part.unfinished_scheduling_delay for part in parts)),
        slo=slo,
    )


def total_over_replicas(values: np.ndarray, replicas: np.ndarray) -> np.ndarray:
    """Sum over replicas of the latest value of each. `values` are counts in order of time, each of its replica."""
    changes = values.astype(np.int64)
    for replica in np.unique(replicas):
        places = np.flatnonzero(replicas == replica)
        changes[places[1:]] -= changes[places[:-1]].copy()
    return changes.cumsum()


def merge_tables(folders: Sequence[Path], directory: Path) -> None:
    """rounds.csv and requests.csv of all `folders` as one table each in `directory`, rows by the time of their ends."""
    end = ROUND_COLUMNS.index("end_time")
    arrival, e2e, status = (REQUEST_COLUMNS.index(name) for name in ("arrival_time", "request_e2e_time", "status"))

    def end_of_request(row: list[str]) -> float:
        if row[e2e]:
            return float(row[arrival]) + float(row[e2e])
        return float(row[arrival]) if row[status] == "ignored" else math.inf  # unfinished ones stand last

    _merge_table("rounds.csv", folders, directory, lambda row: float(row[end]))
    _merge_table("requests.csv", folders, directory, end_of_request)


def _merge_table(name: str, folders: Sequence[Path], directory: Path, key: Callable[[list[str]], float]) -> None:
    files = [open(folder / name, encoding="utf-8", newline="") for folder in folders]
    part = directory / f"{name}.part"
    try:
        tables = [csv.reader(file) for file in files]
        headers = [next(table) for table in tables]
        with open(part, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(headers[0])
            writer.writerows(heapq.merge(*tables, key=key))
    finally:
        for file in files:
            file.close()
    os.replace(part, directory / name)


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _of_known(choose: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None
