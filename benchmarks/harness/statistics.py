"""Means and intervals over seeds, paired changes, the constant between two rows, and verdicts. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

# Student's t, 97.5 %, by the number of values of which a mean is taken; of more than 10, that of 10, which is wider.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}

# The words of all verdicts. Of a change: of the paper's sign and size; of its sign, of another size; none; of the other
# sign. Of all else: as the paper has it, some of it, or not. Undecided: the interval, or a single run, does not tell.
Verdict = Literal["reproduced", "direction only", "no effect", "opposite", "in part", "not reproduced", "undecided"]
REPRODUCED: Final = "reproduced"
DIRECTION: Final = "direction only"
NONE: Final = "no effect"
OPPOSITE: Final = "opposite"
PARTLY: Final = "in part"
NOT_REPRODUCED: Final = "not reproduced"
UNDECIDED: Final = "undecided"
LEAST = 1.0  # percent: a change smaller than this is none, the paper's or ours


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

    @property
    def bar(self) -> tuple[float, float | None]:
        """What a plot draws."""
        return self.value, self.half

    def text(self, digits: int = 2, unit: str = "", *, signed: bool = False) -> str:
        spread = "" if self.half is None else f" ± {self.half:,.{digits}f}"
        return f"{self.value:{'+' if signed else ''},.{digits}f}{spread}{unit}"


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of independent values and its interval."""
    n = len(values)
    if n < 2:
        return Mean(values[0])
    return Mean(statistics.fmean(values), _T[min(n, max(_T))] * statistics.stdev(values) / n**0.5)


def change(before: Sequence[float], after: Sequence[float]) -> Mean:
    """Relative change in percent, seed by seed; 0 where both are 0, infinite where the first alone is."""
    return mean_of([percent(a, b) for a, b in zip(before, after, strict=True)])


def percent(before: float, after: float) -> float:
    """Relative change."""
    if before == after:
        return 0.0
    return 100 * (after / before - 1) if before else math.inf


def verdict(paper: float, ours: Mean, least: float = LEAST) -> Verdict:
    """Whether our change is the paper's, both in percent, signed.

    Reproduced: of its sign, beyond the interval, and between half and twice its size. A change below `least` is none;
    where the paper's is none, ours must be none over its whole interval.
    """
    if ours.half is None:
        return UNDECIDED
    if abs(paper) < least:
        if max(-ours.low, ours.high) < least:
            return REPRODUCED
        return NOT_REPRODUCED if ours.low >= least or ours.high <= -least else UNDECIDED
    sign = 1 if paper > 0 else -1
    low, high = sorted((sign * ours.low, sign * ours.high))
    if abs(ours.value) < least:
        return NONE
    if low > 0:
        return REPRODUCED if 0.5 <= ours.value / paper <= 2 else DIRECTION
    return OPPOSITE if high < 0 else NONE


def level(paper: Sequence[float], ours: Sequence[float], within: float = 10.0) -> Verdict:
    """Whether all of our figures are within so many percent of the paper's; in part: all within a factor of 2."""
    ratios = [a / b if b else math.inf for a, b in zip(ours, paper, strict=True)]
    if all(abs(ratio - 1) <= within / 100 for ratio in ratios):
        return REPRODUCED
    return PARTLY if all(0.5 <= ratio <= 2 for ratio in ratios) else NOT_REPRODUCED


def beyond(ours: Mean, bound: float) -> Verdict:
    """Whether `ours` is above `bound` over its whole interval."""
    if ours.half is None or ours.low <= bound <= ours.high:
        return UNDECIDED
    return REPRODUCED if ours.low > bound else NOT_REPRODUCED


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of a claim in several parts: that of the part that fails, else of one that is undecided."""
    return min(verdicts, key=(NOT_REPRODUCED, UNDECIDED, REPRODUCED).index)


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
