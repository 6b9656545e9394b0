"""How far a reading of Table 10 is from the paper's figures: distances, and rounds as long as the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.harness.cases import Case
from benchmarks.harness.run import Runs
from benchmarks.harness.statistics import Mean, change
from benchmarks.paper import rows
from benchmarks.table10_readings import COUNTERS, DYNAMICS, LATENCIES, OFF, ON, Reading, latency_rows

PAPER = {row["metric"]: row for row in rows("table10")}
COLUMNS = ("apc_off", "apc_on")  # of PAPER, in the order of `pair`
# Two distances, since which level enters decides between readings that are close: once rounds last as long as the
# paper's, or as simulated.
DISTANCE, OWN_DISTANCE = "distance", "distance, own rounds"


def pair(runs: Runs, reading: Reading) -> tuple[Case, Case]:
    """Its cases without and with APC."""
    return runs.find(**reading._asdict(), scheduler=OFF), runs.find(**reading._asdict(), scheduler=ON)


def gap(paper: float, ours: float) -> float:
    """0 if they are equal, 1 if one is 0, up to 2 if their signs differ."""
    largest = max(abs(paper), abs(ours))
    return abs(paper - ours) / largest if largest else 0.0


class Retimed(NamedTuple):
    """A run whose rounds last as long as the paper's."""

    by_seed: dict[str, list[float]]  # LATENCIES, seconds
    itl_ms: float  # mean time between two tokens of a request

    def values(self) -> list[float]:
        """Means over seeds, in the order of LATENCIES."""
        return [statistics.fmean(self.by_seed[metric]) for metric in LATENCIES]


def retimed(runs: Runs, case: Case, column: str) -> Retimed:
    """`case` with its rounds stretched by one factor a run, after which E2E less prefill time is the paper's.

    Ends are stretched and arrivals are not: with a queue all the while, no decision would change.
    """
    theirs = PAPER[LATENCIES[0]][column] - PAPER[LATENCIES[1]][column]
    by_seed: dict[str, list[float]] = {metric: [] for metric in LATENCIES}
    itls = []
    for figures in runs.of(case):
        arrival, e2e, ttft = (figures[name] for name in ("arrival", "e2e", "ttft"))
        factor = theirs / float((e2e - ttft).mean())
        itls.append(factor * figures["itl_mean_ms"])
        for metric, value in latency_rows(*(factor * (arrival + times) - arrival for times in (e2e, ttft))).items():
            by_seed[metric].append(value)
    return Retimed(by_seed, statistics.fmean(itls))


class Judged(NamedTuple):
    """What is derived of both runs of a reading."""

    reading: Reading
    cases: tuple[Case, Case]
    retimed: tuple[Retimed, Retimed]
    distances: dict[str, float]

    def retimed_change(self, metric: str) -> Mean:
        """Of APC, percent, once rounds last as long as the paper's."""
        before, after = (run.by_seed[metric] for run in self.retimed)
        return change(before, after)


def judged(runs: Runs, reading: Reading, *, simulated: bool = True) -> Judged:
    """Both runs of `reading` beside the paper's. Distances are mean gaps: changes of the latencies, dynamics; where it
    is `simulated` and so has the paper's size, counters with APC and both levels of the latencies; and of them means.
    """
    cases = pair(runs, reading)
    both = (retimed(runs, cases[0], COLUMNS[0]), retimed(runs, cases[1], COLUMNS[1]))

    def gaps(metrics: Iterable[str], first: int = 0) -> list[float]:
        return [
            gap(PAPER[m][column], runs.mean(case, m).value)
            for m in metrics
            for column, case in [*zip(COLUMNS, cases, strict=True)][first:]
        ]

    changes = [gap(PAPER[m]["change_percent"], runs.change(*cases, m).value) for m in LATENCIES]
    shape = {"changes": statistics.fmean(changes), "dynamics": statistics.fmean(gaps(DYNAMICS))}
    if not simulated:
        return Judged(reading, cases, both, {DISTANCE: statistics.fmean(shape.values()), **shape})
    shape["counters"] = statistics.fmean(gaps(COUNTERS, first=1))
    level = statistics.fmean(
        gap(PAPER[metric][column], value)
        for column, run in zip(COLUMNS, both, strict=True)
        for metric, value in zip(LATENCIES, run.values(), strict=True)
    )
    own_level = statistics.fmean(gaps(LATENCIES))
    distances = {
        DISTANCE: statistics.fmean([*shape.values(), level]),
        OWN_DISTANCE: statistics.fmean([*shape.values(), own_level]),
    }
    return Judged(reading, cases, both, {**distances, **shape, "level": level, "level, own rounds": own_level})


def distinct(runs: Runs, readings: Sequence[Reading]) -> tuple[list[Reading], dict[Reading, Reading]]:
    """The readings that differ, and of the others the earlier one that is theirs, request for request."""
    kept: list[Reading] = []
    same: dict[Reading, Reading] = {}
    for reading in readings:
        twin = next((other for other in kept if _is_same(runs, reading, other)), None)
        if twin is None:
            kept.append(reading)
        else:
            same[reading] = twin
    return kept, same


def _is_same(runs: Runs, reading: Reading, other: Reading) -> bool:
    return all(
        np.array_equal(a["e2e"], b["e2e"])
        for one, two in zip(pair(runs, reading), pair(runs, other), strict=True)
        for a, b in zip(runs.of(one), runs.of(two), strict=True)
    )
