"""Synthetic requests: lengths that are fixed, drawn from a range or from a trace, put together with arrival times.

Knows nothing of prompts as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice, repeat
from pathlib import Path

import numpy as np

from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.benchmark.workloads.trace import Shaping
from sarathi.benchmark.workloads.trace_file import read_trace
from sarathi.errors import FieldError

MAX_REQUESTS = 10**7  # that a duration may take; all are held in memory
_DRAWN_AT_ONCE = 4096
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


def uniform_lengths(*, min_tokens: int, max_tokens: int, prefill_to_decode_ratio: float, seed: int) -> Lengths:
    """Prompt and output together of a length drawn uniformly from `min_tokens` (>= 2) to `max_tokens`, both included.

    Lengths are whole, where Sarathi-Serve draws a real number and cuts the prompt; see `_split`.
    """
    num_lengths = max_tokens - min_tokens + 1
    draws = ((u * num_lengths).astype(np.int64) + min_tokens for u in _draws(seed))
    note = _range_note(min_tokens, max_tokens, prefill_to_decode_ratio, f"drawn uniformly (seed {seed})")
    return Lengths("uniform", _split(draws, prefill_to_decode_ratio), [note])


def zipf_lengths(
    *, min_tokens: int, max_tokens: int, theta: float, scramble: bool, prefill_to_decode_ratio: float, seed: int
) -> Lengths:
    """Prompt and output together of a length that follows Zipf's law: the k-th of `min_tokens` (>= 2) to `max_tokens`
    has a probability in proportion to k**-theta, for any theta > 0.

    Drawn through the inverse of the exact distribution function. Sarathi-Serve uses the approximation of Gray et al.,
    Quickly generating billion-record synthetic databases (SIGMOD 1994), which divides by 0 at theta = 1 and is meant
    for theta < 1 alone, with sums that leave out their last term. `scramble` gives the probabilities to the lengths in
    an order drawn from the seed, each to one length, the same in every process; Sarathi-Serve hashes the length with a
    hash that differs from process to process, and lengths that collide are added up. Splits as `uniform_lengths`.
    """
    lengths = np.arange(min_tokens, max_tokens + 1)
    cumulative = np.cumsum(np.arange(1.0, len(lengths) + 1) ** -theta)
    if scramble:
        lengths = _random_stream(seed, "scramble").permutation(lengths)

    def draw(u: np.ndarray) -> np.ndarray:
        return lengths[np.searchsorted(cumulative, u * cumulative[-1], side="right").clip(max=len(lengths) - 1)]

    how = f"of a Zipf distribution with theta {theta:g}{', scrambled' * scramble} (seed {seed})"
    note = _range_note(min_tokens, max_tokens, prefill_to_decode_ratio, how)
    return Lengths("zipf", _split(map(draw, _draws(seed)), prefill_to_decode_ratio), [note])


def _split(draws: Iterable[np.ndarray], prefill_to_decode_ratio: float) -> Iterator[tuple[int, int]]:
    """ceil(total / (1 + ratio)) tokens are output and the rest prompt, both at least 1."""
    for totals in draws:
        outputs = np.ceil(totals / (1 + prefill_to_decode_ratio)).astype(np.int64).clip(1, totals - 1)
        yield from zip((totals - outputs).tolist(), outputs.tolist(), strict=True)


def _draws(seed: int) -> Iterator[np.ndarray]:
    """Uniform numbers from 0 to 1, some at a time."""
    rng = _random_stream(seed, "lengths")
    return (rng.random(_DRAWN_AT_ONCE) for _ in count())


def _random_stream(seed: int, purpose: str) -> np.random.Generator:
    """Numbers of their own for each purpose, so that lengths do not go with arrival times of the same seed."""
    return np.random.default_rng((seed, *purpose.encode()))


def _range_note(min_tokens: int, max_tokens: int, ratio: float, how: str) -> str:
    return f"prompt and output have {min_tokens:,} to {max_tokens:,} tokens together, {ratio:g} to 1, {how}"


def trace_lengths(trace_file: str | Path, *, shaping: Shaping, seed: int) -> Lengths:
    """Lengths of a trace of any format in random order, whenever its requests arrived.

    The first pass is in Sarathi-Serve's own order for the seed (pandas' `sample(frac=1, random_state=seed)` is this
    permutation); when more requests are asked for than there are rows, it goes on with another permutation where
    Sarathi-Serve would end with an error. Raises ValueError as `read_trace`.
    """
    trace = read_trace(trace_file, with_times=False, with_lengths=True)
    pairs, notes = shaping.apply(trace.prompts, trace.outputs)
    said = f"{trace.label}: lengths of {len(pairs):,} rows, in random order (seed {seed})"
    notes = [said, *trace.notes, *notes]
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
    else:
        if num_requests is None or len(requests) < num_requests:
            wanted = "" if num_requests is None else f" of {num_requests:,}"
            notes.append(f"the arrival times ended after {len(requests):,}{wanted} requests")
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
