"""Means and intervals over seeds, paired changes, the constant between two rows, and verdicts. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t, 97.5 %, by the number of values of which a mean is taken.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}

REPRODUCED, DIRECTION, OPPOSITE, NONE = "reproduced", "direction only", "opposite", "no effect"


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and half the width of its 95 % interval (Student's t); `half` is None with one value."""

    value: float
    half: float | None = None

    @property
    def low(self) -> float:
        return self.value - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.value + (self.half or 0.0)

    def text(self, digits: int = 2, unit: str = "") -> str:
        spread = "" if self.half is None else f" ± {self.half:,.{digits}f}"
        return f"{self.value:,.{digits}f}{spread}{unit}"


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of independent values and its interval."""
    n = len(values)
    if n < 2:
        return Mean(values[0])
    return Mean(statistics.fmean(values), _T.get(n, 1.96) * statistics.stdev(values) / n**0.5)


def change(before: Sequence[float], after: Sequence[float]) -> Mean:
    """Relative change in percent, seed by seed; 0 where both are 0."""
    return mean_of([100 * (b / a - 1) if a != b else 0.0 for a, b in zip(before, after, strict=True)])


def verdict(paper: float, ours: Mean, least: float = 0.0) -> str:
    """Whether our effect is the paper's (both in percent, signed): of its sign, beyond the interval, and between half
    and twice its size; else what it is instead. One smaller than `least` percent is none."""
    sign = 1 if paper > 0 else -1
    low, high = sorted((sign * ours.low, sign * ours.high))
    if abs(ours.value) < least:
        return NONE
    if low > 0:
        return REPRODUCED if 0.5 <= ours.value / paper <= 2 else DIRECTION
    return OPPOSITE if high < 0 else NONE


@dataclass(frozen=True)
class Offset:
    """The constant that, added to our row, comes closest to the paper's by least squares: the mean difference."""

    constant: float
    largest_rest: float  # of the differences without it, absolute


def fit_offset(paper: Sequence[float], ours: Sequence[float]) -> Offset:
    differences = [a - b for a, b in zip(paper, ours, strict=True)]
    constant = statistics.fmean(differences)
    return Offset(constant, max(abs(d - constant) for d in differences))


@dataclass(frozen=True)
class Factor:
    """What our row times it comes closest to the paper's by least squares of logarithms: the geometric mean ratio."""

    factor: float
    largest_rest: float  # of the relative differences that it leaves, percent, absolute


def fit_factor(paper: Sequence[float], ours: Sequence[float]) -> Factor:
    ratios = [a / b for a, b in zip(paper, ours, strict=True)]
    factor = statistics.geometric_mean(ratios)
    return Factor(factor, max(100 * abs(factor / ratio - 1) for ratio in ratios))
