"""Exact percentiles of plain and of counted samples, and the compact store of inter-token latencies.

Knows numbers only: nothing here knows what a request or a round is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

PERCENTILES = (50, 80, 90, 95, 99)
STAT_NAMES = ("mean", *(f"p{q}" for q in PERCENTILES), "max")
_BUFFERED_GAPS = 1 << 18

Stats = dict[str, float | None]


def _finite_or_none(values: Sequence[float]) -> Stats:
    return {n: float(v) if np.isfinite(v) else None for n, v in zip(STAT_NAMES, values, strict=True)}


def describe(values: np.ndarray) -> Stats:
    """Mean, percentiles (linear interpolation, as numpy.percentile) and maximum of the finite values.

    NaN marks a cell without a value; NaN and infinities are left out. Nulls throughout where nothing is left.
    """
    values = values[np.isfinite(values)]
    if not len(values):
        return dict.fromkeys(STAT_NAMES)
    return _finite_or_none([values.mean(), *np.percentile(values, PERCENTILES), values.max()])


def describe_counted(values: np.ndarray, counts: np.ndarray) -> Stats:
    """`describe` of the sample that holds values[i] counts[i] times. `values` ascend strictly."""
    finite = np.isfinite(values) & (counts > 0)
    values, counts = values[finite], counts[finite]
    if not len(values):
        return dict.fromkeys(STAT_NAMES)
    mean = np.dot(values, counts) / counts.sum()
    return _finite_or_none([mean, *(counted_percentile(values, counts, q) for q in PERCENTILES), values[-1]])


def counted_percentile(values: np.ndarray, counts: np.ndarray, q: float) -> float:
    """numpy.percentile(numpy.repeat(values, counts), q), to the last bit, without the expansion.

    `values` ascend; counts are positive. Interpolates as numpy does: from the nearer of the two neighbours.
    """
    ends = np.cumsum(counts)
    position = (int(ends[-1]) - 1) * (q / 100)
    lower = int(position)
    below = values[np.searchsorted(ends, lower, side="right")]
    above = values[min(np.searchsorted(ends, lower + 1, side="right"), len(values) - 1)]
    t = position - lower
    step = above - below
    return float(above - step * (1 - t) if t >= 0.5 else below + step * t)


class InterTokenGaps:
    """All gaps between consecutive output tokens of all requests, kept exactly.

    Every token appears at the end of a round, so a request that took part in each round from its first token to
    its last has exactly the gaps between those rounds' ends: two marks tell it, whatever its length. Requests
    that sat rounds out (preempted, or several rounds in flight) have their gaps buffered, sorted and counted;
    rounds are shared, so few of these differ.
    """

    def __init__(self, end_times: array[float]) -> None:
        """`end_times`: ends of all rounds so far, seconds, never descending; the caller appends to it."""
        self._end_times = end_times
        self._marks: array[int] = array("q")  # round of a first token, round of a last token, ...
        self._times: array[float] = array("d")  # token times of requests that sat rounds out
        self._starts: array[int] = array("q")  # where in _times a new request begins
        self._merged = _NO_GAPS
        self._pending: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, token_times: list[float]) -> None:
        """The token times (seconds) of a request that ended in the latest round: ends of the rounds that made them."""
        if len(token_times) < 2:
            return
        end_times = self._end_times
        first = bisect_left(end_times, token_times[0])
        # A round makes at most one token of a request: as many tokens as rounds means that none was sat out.
        if (
            first + len(token_times) == len(end_times)
            and token_times[0] == end_times[first]
            and token_times[-1] == end_times[-1]
        ):
            self._marks.append(first)
            self._marks.append(len(end_times) - 1)
            return
        self._starts.append(len(self._times))
        self._times.fromlist(token_times)
        if len(self._times) >= _BUFFERED_GAPS:
            self._count_buffered()

    def _count_buffered(self) -> None:
        gaps = np.diff(np.array(self._times))
        gaps = np.delete(gaps, np.array(self._starts[1:], dtype=np.int64) - 1)
        self._pending.append(np.unique(gaps, return_counts=True))
        self._times, self._starts = array("d"), array("q")
        # Merging only once the new parts are as large as the old keeps the total work n log n.
        if sum(len(values) for values, _ in self._pending) >= len(self._merged[0]):
            self._merged = merge_counted([self._merged, *self._pending])
            self._pending = []

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        """(gaps in seconds, ascending and distinct; how often each occurred)."""
        if self._times:
            self._count_buffered()
        return merge_counted([self._counted_marks(), self._merged, *self._pending])

    def _counted_marks(self) -> tuple[np.ndarray, np.ndarray]:
        """The time between each round's end and the next, and how many marked requests took part in both."""
        marks = np.array(self._marks, dtype=np.int64)
        steps = np.zeros(len(self._end_times), dtype=np.int64)
        np.add.at(steps, marks[0::2], 1)
        np.add.at(steps, marks[1::2], -1)
        counts = np.cumsum(steps)[:-1]
        taken = np.flatnonzero(counts)
        return np.diff(np.array(self._end_times))[taken], counts[taken]


_NO_GAPS = (np.empty(0), np.empty(0, dtype=np.int64))


def merge_counted(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Counted samples as one: (values ascending and distinct, how often each occurred). Values are at least 0."""
    values = np.concatenate([v for v, _ in parts])
    counts = np.concatenate([c for _, c in parts])
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    starts = np.flatnonzero(np.diff(values, prepend=-1.0))  # gaps are never negative
    return values[starts], np.add.reduceat(counts, starts) if len(starts) else counts
