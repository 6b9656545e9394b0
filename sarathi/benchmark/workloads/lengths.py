"""Synthetic requests: lengths that are fixed or drawn from a trace, put together with arrival times.

Knows nothing of prompts as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, repeat
from pathlib import Path

import numpy as np

from sarathi.benchmark.workloads.spec import RequestSpec, Workload, check_at_least, check_positive
from sarathi.benchmark.workloads.trace import LENGTH_COLUMNS, read_csv_columns

_MAX_AT_ONCE = 100_000  # so many requests at one instant and no limit on their number: time does not go on


@dataclass
class Lengths:
    """An endless supply of (num_prompt_tokens, num_output_tokens), and what its making did to the data."""

    name: str
    pairs: Iterator[tuple[int, int]]
    notes: list[str] = field(default_factory=list)
    num_rows: int | None = None  # after so many pairs the rows come again, in another order


def fixed_lengths(prefill_tokens: int, decode_tokens: int) -> Lengths:
    """Every request alike. Raises ValueError for a prompt of less than 1 token or a negative output."""
    check_at_least("prefill_tokens", prefill_tokens, 1)
    check_at_least("decode_tokens", decode_tokens, 0)
    note = f"every request has {prefill_tokens:,} prompt and {decode_tokens:,} output tokens"
    return Lengths("fixed", repeat((prefill_tokens, decode_tokens)), [note])


def trace_lengths(
    file: str | Path,
    *,
    prefill_scale_factor: float = 1.0,
    decode_scale_factor: float = 1.0,
    max_tokens: int = 4096,
    max_output_tokens: int | None = None,
    seed: int = 42,
) -> Lengths:
    """Lengths of a trace in random order, with Sarathi-Serve's meaning of the settings.

    Counts are scaled and cut to integers of at least 1, and outputs to `max_output_tokens`; where prompt and
    output still exceed `max_tokens` together, both are shortened in proportion. The first pass is in
    Sarathi-Serve's own order for the seed (pandas' `sample(frac=1, random_state=seed)` is this permutation); when
    more requests are asked for than there are rows, it goes on with another permutation where Sarathi-Serve would
    end with an error.
    Raises ValueError for bad settings and for a bad file.
    """
    check_positive("prefill_scale_factor", prefill_scale_factor)
    check_positive("decode_scale_factor", decode_scale_factor)
    check_at_least("max_tokens", max_tokens, 2)
    check_at_least("max_output_tokens", max_output_tokens, 1)
    prefills, decodes = read_csv_columns(file, LENGTH_COLUMNS)
    pairs: list[tuple[int, int]] = []
    num_raised = num_capped = num_clipped = num_cut_tokens = longest = 0
    for prefill, decode in zip(prefills, decodes, strict=True):
        num_prompt = max(1, int(prefill * prefill_scale_factor))
        num_output = max(1, int(decode * decode_scale_factor))
        num_raised += prefill * prefill_scale_factor < 1 or decode * decode_scale_factor < 1
        if max_output_tokens is not None and num_output > max_output_tokens:
            num_output = max_output_tokens
            num_capped += 1
        total = num_prompt + num_output
        longest = max(longest, total)
        if total > max_tokens:
            num_prompt = max(1, num_prompt * max_tokens // total)
            num_output = max(1, num_output * max_tokens // total)
            num_clipped += 1
            num_cut_tokens += total - num_prompt - num_output
        pairs.append((num_prompt, num_output))
    notes = [f"{file}: lengths of {len(pairs):,} rows, in random order (seed {seed})"]
    if num_raised:
        notes.append(f"{num_raised:,} rows with a count of 0 were given 1 token")
    if num_capped:
        notes.append(f"max_output_tokens {max_output_tokens:,} capped the outputs of {num_capped:,} rows")
    if num_clipped:
        notes.append(
            f"max_tokens {max_tokens:,} shortened {num_clipped:,} of {len(pairs):,} rows by {num_cut_tokens:,} tokens "
            f"in all (longest {longest:,})"
        )
    return Lengths(Path(file).stem, _shuffled_for_ever(pairs, seed), notes, len(pairs))


def _shuffled_for_ever(pairs: list[tuple[int, int]], seed: int) -> Iterator[tuple[int, int]]:
    rng = np.random.RandomState(seed)
    while True:
        for i in rng.permutation(len(pairs)).tolist():
            yield pairs[i]


def synthetic_workload(
    lengths: Lengths, arrivals: Iterable[float], num_requests: int | None, duration: float | None = None
) -> Workload:
    """`num_requests` requests, or all that arrive before `duration` (seconds); whichever ends first if both are set.

    `arrivals` are arrival times in seconds, never decreasing. Raises ValueError for bad settings.
    """
    check_at_least("num_requests", num_requests, 1)
    if duration is not None:
        check_positive("duration", duration)
    elif num_requests is None:
        raise ValueError("num_requests: None is not allowed without a duration; an integer of at least 1")
    requests: list[RequestSpec] = []
    notes = list(lengths.notes)
    for arrival_time, (num_prompt, num_output) in zip(islice(arrivals, num_requests), lengths.pairs, strict=False):
        if duration is not None and arrival_time >= duration:
            wanted = "" if num_requests is None else f" of {num_requests:,}"
            notes.append(f"stopped at duration {duration:g} s after {len(requests):,}{wanted} requests")
            break
        if num_requests is None and len(requests) == _MAX_AT_ONCE and arrival_time == requests[0].arrival_time:
            raise ValueError(
                f"duration: {duration} s is never reached; more than {_MAX_AT_ONCE:,} requests arrive at "
                f"{arrival_time} s (set a number of requests, or an interval above 0)"
            )
        requests.append(RequestSpec(str(len(requests)), arrival_time, num_prompt, num_output))
    if not requests:
        raise ValueError(f"duration: {duration!r} is not allowed; the first request arrives at or after it")
    if lengths.num_rows is not None and len(requests) > lengths.num_rows:
        notes.append(
            f"{len(requests):,} requests from {lengths.num_rows:,} rows: they were used "
            f"{len(requests) / lengths.num_rows:.1f} times, in a new order each time"
        )
    return Workload(f"synthetic-{lengths.name}", requests, notes)
