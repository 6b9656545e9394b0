"""Which rates are probed, and what was found. Knows rates and verdicts only, not what a probe is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

LOWEST, HIGHEST = 1e-3, 1e3  # of the first rate: beyond them nothing is probed
MIN_RATE, MAX_RATE = 1e-6, 1e6  # requests per second that a generator takes
FIRST_STEP, STEP = 2.0, 4.0  # of growth while everything holds, and of decline while nothing does


class Found(NamedTuple):
    """`low` is the highest rate probed below `high` that holds, `high` the lowest that does not; None: there is none.

    `is_close`: they lie within the granularity, or one of them is at the end of what is probed.
    """

    low: float | None
    high: float | None
    is_close: bool
    num_probes: int


def find_capacity(holds: Callable[[float], bool], *, start: float, granularity: float, max_probes: int) -> Found:
    """Search for the highest rate that `holds`, from `start` (requests per second) on.

    Grows while rates hold and declines while they do not, then bisects in the logarithm until `high` is at most
    (1 + `granularity`) times `low`. `granularity` is relative, 0.025 for 2.5 %. Where `holds` is not monotone the
    result is still a rate that holds beside one, as close above it, that does not.
    """
    digits = significant_digits(granularity)
    lowest = rounded(max(MIN_RATE, LOWEST * start), digits)
    highest = rounded(min(MAX_RATE, HIGHEST * start), digits)
    low: float | None = None
    high: float | None = None
    rate, num_probes, step = rounded(start, digits), 0, FIRST_STEP
    while num_probes < max_probes:
        num_probes += 1
        if holds(rate):
            low = rate
        else:
            high = rate
        if low is not None and high is not None:
            if high <= low * (1 + granularity):
                return Found(low, high, True, num_probes)
            rate = rounded(math.sqrt(low * high), digits)
            continue
        if rate in (lowest, highest):
            return Found(low, high, True, num_probes)
        rate = min(rate * step, highest) if high is None else max(rate / step, lowest)
        rate, step = rounded(rate, digits), STEP
    return Found(low, high, False, num_probes)


def significant_digits(granularity: float) -> int:
    """Of rates: so many that rounding moves one by a twentieth of the granularity at most."""
    return 2 + math.ceil(-math.log10(min(granularity, 1.0)))


def rounded(rate: float, digits: int) -> float:
    """`rate` to so many significant digits, so that a probe has the same name in every search."""
    return float(f"{rate:.{digits}g}")
