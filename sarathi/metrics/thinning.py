"""Which of many points a plot shows, and how that is said. Knows arrays, not what they mean nor how they are drawn."""

from __future__ import annotations

from typing import Literal

import numpy as np

Counted = tuple[np.ndarray, np.ndarray]  # distinct values, ascending, and how often each occurred

MAX_POINTS = 4000  # of a scatter
NUM_HIGHEST = 100  # points of a thinned scatter that are never left out
MAX_CDF_POINTS = 1500
MIN_IN_MEDIAN = 8  # fewer values than that have no median drawn


def rounded(values: np.ndarray, digits: int = 6) -> list[float | None]:
    """Plain numbers of `digits` significant digits, None where not finite."""
    floats = np.asarray(values, dtype=np.float64).tolist()
    return [float(f"{v:.{digits}g}") if v - v == 0 else None for v in floats]


def thinned(y: np.ndarray, max_points: int = MAX_POINTS) -> np.ndarray:
    """Indices of at most `max_points` of the finite `y`: spread evenly, both ends and the highest among them."""
    known = np.flatnonzero(np.isfinite(y))
    if len(known) <= max_points:
        return known
    highest = known[np.argpartition(y[known], -NUM_HIGHEST)[-NUM_HIGHEST:]]
    spread = known[np.linspace(0, len(known) - 1, max_points - NUM_HIGHEST).astype(int)]
    return np.union1d(spread, highest)


def thinned_note(num: int, what: str, max_points: int = MAX_POINTS) -> str:
    """'5,000 rounds: 4,000 drawn, the highest among them', or only the number where all are drawn."""
    text = f"{num:,} {what}"
    return text if num <= max_points else f"{text}: about {max_points:,} drawn, the {NUM_HIGHEST} highest among them"


def binned(
    times: np.ndarray, values: np.ndarray, num_bins: int, reduce: Literal["max", "mean", "median"]
) -> tuple[np.ndarray, np.ndarray]:
    """(starts, reduced values) of the non-empty ones of `num_bins` equal slices of time; `times` ascend."""
    if not len(times):
        return times, values
    edges = np.linspace(times[0], times[-1], num_bins + 1)[:-1]
    starts = np.searchsorted(times, edges)
    counts = np.diff(np.append(starts, len(times)))
    full = counts > 0
    edges, starts, counts = edges[full], starts[full], counts[full]
    if reduce == "max":
        return edges, np.maximum.reduceat(values, starts)
    if reduce == "mean":
        return edges, np.add.reduceat(values, starts) / counts
    return edges, np.array([np.median(values[a : a + n]) for a, n in zip(starts, counts, strict=True)])


def medians_by_doubling(lengths: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(middle of each doubling of `lengths` in which enough finite `values` lie; their median)."""
    known = np.isfinite(values) & (lengths > 0)
    values, doubling = values[known], np.floor(np.log2(lengths[known]))
    doublings, counts = np.unique(doubling, return_counts=True)
    doublings = doublings[counts >= MIN_IN_MEDIAN]
    return 2.0 ** (doublings + 0.5), np.array([np.median(values[doubling == one]) for one in doublings], dtype=float)


def distinct(values: np.ndarray | Counted) -> tuple[np.ndarray, np.ndarray]:
    """Ascending values and how many are at or below each."""
    if isinstance(values, tuple):
        return values[0], np.cumsum(values[1])
    values = np.sort(values[np.isfinite(values)])
    return values, np.arange(1, len(values) + 1)


def cdf_indices(share: np.ndarray) -> np.ndarray:
    """Which steps to draw: both ends, the usual percentiles, an even spread, and more of the tail."""
    if len(share) <= MAX_CDF_POINTS:
        return np.arange(len(share))
    tail = 1 - np.geomspace(1e-6, 0.1, 300)
    wanted = np.concatenate([np.linspace(0, 1, MAX_CDF_POINTS - 310), tail, [0.5, 0.8, 0.9, 0.95, 0.99, 0.999]])
    return np.unique(np.minimum(np.searchsorted(share, wanted - 1e-12), len(share) - 1))
