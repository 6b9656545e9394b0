"""Runs beside each other: means and changes against a baseline with confidence intervals, requests paired one by one,
and what must be known before the figures are believed. Pure functions of loaded runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sarathi.comparison.bootstrap import Interval, mean_interval, relative_change, relative_change_interval
from sarathi.comparison.groups import Entry, differing_settings
from sarathi.comparison.run import ComparedRun, RunPair, have_same_seeds, workload_differences
from sarathi.comparison.warnings import find_warnings
from sarathi.metrics.headline import E2E, METRICS, TTFT, Metric

PAIRED_METRICS = (E2E, TTFT)
_SAME_TIME = 1e-9  # seconds; what is closer is neither faster nor slower


class Row(NamedTuple):
    """One number of one entry, in the order of the columns of comparison.csv; seconds, shares and counts.

    `value` is a mean over `num_runs` runs, with its interval. The change against the baseline is in percent; where it
    is `paired`, it is of `num_pairs` pairs of runs that were sent the same requests. None where there is none.
    """

    label: str
    metric: str
    statistic: str
    value: float | None
    ci_low: float | None
    ci_high: float | None
    baseline: str
    delta_percent: float | None
    delta_ci_low: float | None
    delta_ci_high: float | None
    paired: bool | None
    num_runs: int
    num_pairs: int


class PairedRequests(NamedTuple):
    """Requests that finished both in a run and in the baseline's, compared one by one; means over pairs of runs.

    Times in seconds; `difference` is the run's minus the baseline's. The intervals are over pairs of runs, None of one:
    requests of a run are no independent samples.
    """

    label: str
    metric: str
    num_requests: int  # in common, of all pairs
    num_pairs: int
    baseline_mean: float
    mean: float
    difference: float
    difference_interval: Interval | None
    share_faster: float
    share_faster_interval: Interval | None
    share_slower: float


@dataclass(frozen=True)
class Comparison:
    """`rows`: each entry's metrics in order. `settings`: see differing_settings. `warnings`: a line each."""

    entries: list[Entry]
    baseline: Entry
    rows: list[Row]
    paired_requests: list[PairedRequests]
    settings: dict[str, list[str]]
    warnings: list[str]

    def row(self, label: str, metric: Metric) -> Row:
        return self._by_metric[label, metric.name, metric.statistic]

    @cached_property
    def _by_metric(self) -> dict[tuple[str, str, str], Row]:
        return {(row.label, row.metric, row.statistic): row for row in self.rows}


def compare_entries(entries: Sequence[Entry], baseline: Entry) -> Comparison:
    """Every entry against `baseline`, which is one of them."""
    rows: list[Row] = []
    paired: list[PairedRequests] = []
    paired_rows: list[Row] = []
    pairs_of: dict[str, list[RunPair]] = {}
    for entry in entries:
        is_apart = not entry.shares_runs(baseline)
        pairs = pairs_of[entry.label] = find_pairs(baseline, entry) if is_apart else []
        rows += [_row(metric, entry, baseline if is_apart else None, baseline.label, pairs) for metric in METRICS]
        if pairs := pairs or (_same_requests(baseline, entry) if is_apart else []):
            found = [paired_requests(entry.label, metric, pairs) for metric in PAIRED_METRICS]
            paired += (known := [one for one in found if one is not None])
            paired_rows += [row for one in known for row in _paired_rows(one, baseline.label, len(entry.runs))]
    return Comparison(
        entries=list(entries),
        baseline=baseline,
        rows=rows + paired_rows,
        paired_requests=paired,
        settings=differing_settings(entries),
        warnings=find_warnings(entries, baseline, pairs_of),
    )


def find_pairs(baseline: Entry, entry: Entry) -> list[RunPair]:
    """Runs of the two with equal seeds and the same requests, each in one pair at most.

    None unless every run of the smaller side has its partner: a few pairs of many would stand for too little.
    """
    left = list(baseline.runs)
    pairs: list[RunPair] = []
    for run in entry.runs:
        for other in left:
            if have_same_seeds(other, run) and not workload_differences(other, run):
                left.remove(other)
                pairs.append((other, run))
                break
    return pairs if len(pairs) == min(len(baseline.runs), len(entry.runs)) else []


def _same_requests(baseline: Entry, entry: Entry) -> list[RunPair]:
    """The pair of two lone runs whose seeds differ though their requests do not."""
    if len(baseline.runs) != 1 or len(entry.runs) != 1 or workload_differences(baseline.runs[0], entry.runs[0]):
        return []
    return [(baseline.runs[0], entry.runs[0])]


def _row(metric: Metric, entry: Entry, baseline: Entry | None, name: str, pairs: Sequence[RunPair]) -> Row:
    values = _values(metric, entry.runs)
    change, change_interval, num_pairs = None, None, 0
    if baseline is not None:
        before, after = _values(metric, baseline.runs), values
        if pairs:
            both = [(metric.of(a.summary), metric.of(b.summary)) for a, b in pairs]
            known = np.array([pair for pair in both if None not in pair], dtype=float).reshape(-1, 2)
            before, after, num_pairs = known[:, 0], known[:, 1], len(known)
        if len(before) and len(after):
            change = relative_change(before, after)
            change_interval = relative_change_interval(before, after, paired=bool(pairs))
    return Row(
        entry.label,
        metric.name,
        metric.statistic,
        float(values.mean()) if len(values) else None,
        *(mean_interval(values) or (None, None)),
        name,
        change,
        *((None, None) if change is None or change_interval is None else change_interval),
        bool(pairs) if baseline is not None else None,
        len(entry.runs),
        num_pairs,
    )


def _values(metric: Metric, runs: Sequence[ComparedRun]) -> np.ndarray:
    found = [metric.of(run.summary) for run in runs]
    return np.array([value for value in found if value is not None], dtype=float)


def paired_requests(label: str, metric: str, pairs: Sequence[RunPair]) -> PairedRequests | None:
    """Of the column `metric` of finished requests; None where no request has it in both runs of some pair."""
    before, after = zip(*(_common(metric, a, b) for a, b in pairs), strict=True)
    if not all(len(values) for values in before):
        return None
    differences = [b - a for a, b in zip(before, after, strict=True)]
    faster = [(difference < -_SAME_TIME).astype(float) for difference in differences]

    def over_pairs(columns: Sequence[np.ndarray]) -> tuple[float, Interval | None]:
        means = np.array([values.mean() for values in columns])
        return float(means.mean()), mean_interval(means)

    return PairedRequests(
        label,
        metric,
        sum(map(len, differences)),
        len(pairs),
        over_pairs(before)[0],
        over_pairs(after)[0],
        *over_pairs(differences),
        *over_pairs(faster),
        over_pairs([(difference > _SAME_TIME).astype(float) for difference in differences])[0],
    )


def _common(metric: str, a: ComparedRun, b: ComparedRun) -> tuple[np.ndarray, np.ndarray]:
    """The column in both runs, of requests that have it in both, in one order."""
    _, i, j = np.intersect1d(
        a.finished["request_id"], b.finished["request_id"], assume_unique=True, return_indices=True
    )
    before, after = a.finished[metric][i], b.finished[metric][j]
    known = np.isfinite(before) & np.isfinite(after)
    return before[known], after[known]


def _paired_rows(paired: PairedRequests, baseline: str, num_runs: int) -> list[Row]:
    def row(statistic: str, value: float, interval: Interval | None, change: float | None) -> Row:
        low, high = interval or (None, None)
        ends = (paired.label, paired.metric, statistic, value, low, high, baseline, change, None, None)
        return Row(*ends, True, num_runs, paired.num_pairs)

    change = relative_change(np.array([paired.baseline_mean]), np.array([paired.mean]))
    return [
        row("num_common_requests", paired.num_requests, None, None),
        row("mean_of_common_requests", paired.mean, None, change),
        row("mean_difference_of_common_requests", paired.difference, paired.difference_interval, None),
        row("share_of_common_requests_faster", paired.share_faster, paired.share_faster_interval, None),
        row("share_of_common_requests_slower", paired.share_slower, None, None),
    ]
