"""When requests arrive: endless iterators of arrival times in seconds, never decreasing.

Knows nothing of what the requests are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import accumulate, count

from sarathi.errors import FieldError


def static_arrivals(interval: float) -> Iterator[float]:
    """Request i arrives at i * interval, the first at 0. An interval of 0 sends everything at once.

    Multiplied rather than summed, so that request 1,000 at 0.1 s arrives at 100 s exactly.
    Raises FieldError for a negative or infinite interval.
    """
    if not 0 <= interval < math.inf:
        raise FieldError("interval", f"{interval!r} is not allowed; seconds between arrivals, at least 0")
    return (i * interval for i in count())


def poisson_arrivals(qps: float, seed: int) -> Iterator[float]:
    """A Poisson process of `qps` requests per second; the first arrives after the first exponential gap.

    Sarathi-Serve cuts every gap at 3 / qps, which makes the real rate 5 % higher than the one asked for
    (the mean of a cut gap is (1 - exp(-3)) / qps); here the rate is the one asked for.
    Raises FieldError for a rate that is not above 0.
    """
    if not 0 < qps < math.inf:
        raise FieldError("qps", f"{qps!r} is not allowed; requests per second, above 0")
    rng = random.Random(seed)
    return accumulate(rng.expovariate(qps) for _ in count())


def gamma_arrivals(qps: float, cv: float, seed: int) -> Iterator[float]:
    """Gaps of a gamma distribution with mean 1 / `qps` seconds and coefficient of variation `cv`.

    Its shape is 1 / cv**2: a cv of 1 is a Poisson process, less is more even, more is burstier. The first request
    arrives after the first gap. Raises FieldError for a rate or a cv that is not above 0.
    """
    if not 0 < qps < math.inf:
        raise FieldError("qps", f"{qps!r} is not allowed; requests per second, above 0")
    if not 0 < cv < math.inf:
        raise FieldError("cv", f"{cv!r} is not allowed; standard deviation of the gaps over their mean, above 0")
    shape = 1 / cv**2
    rng = random.Random(seed)
    return accumulate(rng.gammavariate(shape, 1 / (qps * shape)) for _ in count())
