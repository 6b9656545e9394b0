"""Synthetic requests: lengths that are fixed or drawn from a trace, put together with arrival times.

Knows nothing of prompts as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, repeat
from pathlib import Path

import numpy as np

from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.benchmark.workloads.trace import LENGTH_COLUMNS, LIMITS, Shaping
from sarathi.csv_columns import read_rows
from sarathi.errors import FieldError

MAX_REQUESTS = 10**7  # that a duration may take; all are held in memory
_SAMPLE = 100_000  # requests, whose pace tells how many a duration takes


@dataclass
class Lengths:
    """An endless supply of (num_prompt_tokens, num_output_tokens), and what its making did to the data."""

    name: str
    pairs: Iterator[tuple[int, int]]
    notes: list[str] = field(default_factory=list)
    num_rows: int | None = None  # after so many pairs the rows come again, in another order


def fixed_lengths(prefill_tokens: int, decode_tokens: int) -> Lengths:
    """Every request alike: a prompt of at least 1 token, an output of at least 0."""
    note = f"every request has {prefill_tokens:,} prompt and {decode_tokens:,} output tokens"
    return Lengths("fixed", repeat((prefill_tokens, decode_tokens)), [note])


def trace_lengths(trace_file: str | Path, *, shaping: Shaping, seed: int) -> Lengths:
    """Lengths of a trace in random order.

    The first pass is in Sarathi-Serve's own order for the seed (pandas' `sample(frac=1, random_state=seed)` is this
    permutation); when more requests are asked for than there are rows, it goes on with another permutation where
    Sarathi-Serve would end with an error. Raises ValueError as `read_rows`.
    """
    rows = ((prefill, decode) for _, (prefill, decode) in read_rows(trace_file, LENGTH_COLUMNS, LIMITS))
    pairs, notes = shaping.apply(rows)
    notes = [f"{trace_file}: lengths of {len(pairs):,} rows, in random order (seed {seed})", *notes]
    return Lengths(Path(trace_file).stem, _shuffled_for_ever(pairs, seed), notes, len(pairs))


def _shuffled_for_ever(pairs: list[tuple[int, int]], seed: int) -> Iterator[tuple[int, int]]:
    rng = np.random.RandomState(seed)
    while True:
        for i in rng.permutation(len(pairs)).tolist():
            yield pairs[i]


def synthetic_workload(
    lengths: Lengths, arrivals: Iterable[float], *, num_requests: int | None, duration: float | None
) -> Workload:
    """`num_requests` requests, or all that arrive before `duration` (seconds); whichever ends first if both are set.

    `arrivals` are arrival times in seconds, never decreasing. Raises FieldError of `duration` or `num_requests`
    where neither ends the requests, and where there are none.
    """
    if num_requests is None and duration is None:
        raise FieldError("num_requests", "an integer of at least 1 is needed where there is no duration")
    requests: list[RequestSpec] = []
    notes = list(lengths.notes)
    for arrival_time, (num_prompt, num_output) in zip(islice(arrivals, num_requests), lengths.pairs, strict=False):
        if duration is not None and arrival_time >= duration:
            wanted = "" if num_requests is None else f" of {num_requests:,}"
            notes.append(f"stopped at duration {duration:g} s after {len(requests):,}{wanted} requests")
            break
        if num_requests is None and len(requests) == _SAMPLE:
            _check_pace(arrival_time, duration)
        requests.append(RequestSpec(str(len(requests)), arrival_time, num_prompt, num_output))
    if not requests:
        raise FieldError("duration", f"{duration!r} is not allowed; the first request arrives at or after it")
    if lengths.num_rows is not None and len(requests) > lengths.num_rows:
        notes.append(
            f"{len(requests):,} requests from {lengths.num_rows:,} rows: they were used "
            f"{len(requests) / lengths.num_rows:.1f} times, in a new order each time"
        )
    return Workload(f"synthetic-{lengths.name}", requests, notes)


def _check_pace(sample_time: float, duration: float | None) -> None:
    """Refuse a duration that takes more than MAX_REQUESTS requests where _SAMPLE of them take `sample_time`."""
    if duration is not None and sample_time * MAX_REQUESTS / _SAMPLE < duration:
        raise FieldError(
            "duration",
            f"{duration:g} s take more than {MAX_REQUESTS:,} requests; request {_SAMPLE:,} arrives at "
            f"{sample_time:g} s (set a number of requests, or longer intervals)",
        )
