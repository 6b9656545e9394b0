"""CSV traces: what their lengths become, and the replay of one that has arrival times.

The columns are num_prefill_tokens and num_decode_tokens, for a replay also arrived_at in seconds; others are
ignored. Knows nothing of generators.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sarathi.benchmark.workloads.spec import MAX_ARRIVAL_TIME, RequestSpec, Workload
from sarathi.csv_columns import MAX_VALUE, read_rows
from sarathi.errors import FieldError

LENGTH_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
ARRIVAL_COLUMN = "arrived_at"
# The time of day in nanoseconds is read too: only its distance from the first arrival counts.
LIMITS = {**dict.fromkeys(LENGTH_COLUMNS, 10**9), ARRIVAL_COLUMN: 10**19}


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """How a trace's counts become the lengths of requests.

    Counts are multiplied by their factor (> 0) and cut to integers, prompts of at least 1 token and outputs of at
    least `min_output_tokens` (0 or 1); outputs are capped at `max_output_tokens`; where prompt and output still
    exceed `max_tokens` (>= 2) together, both are shortened in proportion, as Sarathi-Serve does. None is no limit.
    """

    prefill_scale_factor: float
    decode_scale_factor: float
    max_tokens: int | None
    max_output_tokens: int | None
    min_output_tokens: int

    def apply(self, rows: Iterable[tuple[float, float]]) -> tuple[list[tuple[int, int]], list[str]]:
        """(prompt, output) tokens of each row, and one line for each thing that changed some."""
        pairs: list[tuple[int, int]] = []
        num_raised = num_capped = num_clipped = num_cut_tokens = longest = 0
        for prefill, decode in rows:
            scaled_prompt = _whole(prefill * self.prefill_scale_factor)
            scaled_output = _whole(decode * self.decode_scale_factor)
            num_prompt, num_output = max(1, scaled_prompt), max(self.min_output_tokens, scaled_output)
            num_raised += num_prompt > scaled_prompt or num_output > scaled_output
            if self.max_output_tokens is not None and num_output > self.max_output_tokens:
                num_output = self.max_output_tokens
                num_capped += 1
            total = num_prompt + num_output
            longest = max(longest, total)
            if self.max_tokens is not None and total > self.max_tokens:
                num_prompt = max(1, num_prompt * self.max_tokens // total)
                num_output = max(min(1, num_output), num_output * self.max_tokens // total)
                num_clipped += 1
                num_cut_tokens += total - num_prompt - num_output
            pairs.append((num_prompt, num_output))
        notes = []
        if num_raised:
            notes.append(f"{num_raised:,} rows with a count of 0 were given 1 token")
        if num_capped:
            notes.append(f"max_output_tokens {self.max_output_tokens:,} capped the outputs of {num_capped:,} rows")
        if num_clipped:
            notes.append(
                f"max_tokens {self.max_tokens:,} shortened {num_clipped:,} of {len(pairs):,} rows by "
                f"{num_cut_tokens:,} tokens in all (longest {longest:,})"
            )
        if num_empty := sum(num_output == 0 for _, num_output in pairs):
            notes.append(f"{num_empty:,} rows have 0 output tokens and generate nothing")
        return pairs, notes


def _whole(count: float) -> int:
    return int(min(count, MAX_VALUE))


def trace_workload(
    trace_file: str | Path, *, num_requests: int | None, time_scale_factor: float, shaping: Shaping
) -> Workload:
    """Replay a trace at its own pace, the first `num_requests` of its requests (None: all) in time order.

    `time_scale_factor` (> 0) multiplies arrival times after the first arrival was made 0. Raises ValueError as
    `read_rows`, and FieldError of `time_scale_factor` where the last arrival is later than any run lasts.
    """
    rows = [tuple(row.values) for row in read_rows(trace_file, (ARRIVAL_COLUMN, *LENGTH_COLUMNS), LIMITS)]
    num_unsorted = sum(b[0] < a[0] for a, b in pairwise(rows))
    rows.sort(key=lambda row: row[0])
    taken = rows[:num_requests]
    first = taken[0][0]
    times = [(time - first) * time_scale_factor for time, _, _ in taken]
    if times[-1] > MAX_ARRIVAL_TIME:
        raise FieldError(
            "time_scale_factor",
            f"{time_scale_factor:g} is too large for {trace_file}; its last request would arrive {times[-1]:,.3g} s "
            f"after the first, at most {MAX_ARRIVAL_TIME:,} s are allowed (is it in seconds?)",
        )
    notes = [f"{trace_file}: {len(taken):,} of {len(rows):,} rows, arriving from {times[0]:,.3f} to {times[-1]:,.3f} s"]
    if first:
        notes.append(f"arrival times begin at 0; {first:,.3f} was taken off each before scaling")
    if num_unsorted:
        notes.append(f"arrival times were not in order ({num_unsorted:,} rows earlier than the row before); sorted")
    if num_requests is not None and num_requests > len(rows):
        notes.append(f"{num_requests:,} requests were asked for, the trace has {len(rows):,}")
    pairs, notes_on_lengths = shaping.apply((prefill, decode) for _, prefill, decode in taken)
    requests = [RequestSpec(str(i), time, *pair) for i, (time, pair) in enumerate(zip(times, pairs, strict=True))]
    return Workload(Path(trace_file).stem, requests, notes + notes_on_lengths)
