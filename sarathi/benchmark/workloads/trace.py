"""Traces: what their lengths become, the replay of one, and its arrival times alone.

Which files are traces, and their columns, is `trace_file`'s business. Knows nothing of generators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sarathi.benchmark.workloads.spec import MAX_ARRIVAL_TIME, RequestSpec, Workload
from sarathi.benchmark.workloads.trace_file import Trace, describe_days, read_trace
from sarathi.csv_columns import MAX_VALUE
from sarathi.errors import FieldError
from sarathi.instants import parse_day, parse_instant


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """How a trace's counts become the lengths of requests.

    Counts are multiplied by their factor (> 0) and cut to integers, prompts of at least 1 token and outputs of at
    least `min_output_tokens` (0 or 1); outputs are capped at `max_output_tokens`; where prompt and output still
    exceed `max_tokens` (>= 2) together, both are shortened in proportion, as Sarathi-Serve does with lengths. With
    `shorten_prompts_only` the prompt alone is, to no less than 1 token, as Sarathi-Serve does in a replay; it leaves a
    negative prompt where the output alone is too long, here the output is then cut too. None is no limit.
    """

    prefill_scale_factor: float
    decode_scale_factor: float
    max_tokens: int | None
    max_output_tokens: int | None
    min_output_tokens: int
    shorten_prompts_only: bool = False

    def apply(self, prompts: np.ndarray, outputs: np.ndarray) -> tuple[list[tuple[int, int]], list[str]]:
        """(prompt, output) tokens of each row of two columns, and one line for each thing that changed some."""
        scaled_prompts = _scaled(prompts, self.prefill_scale_factor)
        scaled_outputs = _scaled(outputs, self.decode_scale_factor)
        num_prompt, num_output = np.maximum(scaled_prompts, 1), np.maximum(scaled_outputs, self.min_output_tokens)
        notes = []
        if num_raised := int(((num_prompt > scaled_prompts) | (num_output > scaled_outputs)).sum()):
            notes.append(f"{num_raised:,} rows with a count of 0 were given 1 token")
        if self.max_output_tokens is not None and (num_capped := int((num_output > self.max_output_tokens).sum())):
            num_output = np.minimum(num_output, self.max_output_tokens)
            notes.append(f"max_output_tokens {self.max_output_tokens:,} capped the outputs of {num_capped:,} rows")
        pairs = list(zip(num_prompt.tolist(), num_output.tolist(), strict=True))
        totals = num_prompt + num_output
        if self.max_tokens is not None and len(too_long := np.flatnonzero(totals > self.max_tokens)):
            for i in too_long.tolist():
                pairs[i] = self._shortened(*pairs[i], self.max_tokens)
            num_cut_tokens = int(totals[too_long].sum()) - sum(sum(pairs[i]) for i in too_long.tolist())
            notes.append(
                f"max_tokens {self.max_tokens:,} shortened {len(too_long):,} of {len(pairs):,} rows by "
                f"{num_cut_tokens:,} tokens in all (longest {totals.max():,})"
            )
        if num_empty := sum(output == 0 for _, output in pairs):
            notes.append(f"{num_empty:,} rows have 0 output tokens and generate nothing")
        return pairs, notes

    def _shortened(self, num_prompt: int, num_output: int, max_tokens: int) -> tuple[int, int]:
        if self.shorten_prompts_only:
            num_output = min(num_output, max_tokens - 1)
            return max_tokens - num_output, num_output
        total = num_prompt + num_output
        return max(1, num_prompt * max_tokens // total), max(min(1, num_output), num_output * max_tokens // total)


def _scaled(counts: np.ndarray, factor: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.minimum(counts * factor, MAX_VALUE).astype(np.int64)


def trace_workload(
    trace_file: str | Path,
    *,
    num_requests: int | None,
    time_scale_factor: float,
    shaping: Shaping,
    date: str | None = None,
) -> Workload:
    """Replay a trace at its own pace, the first `num_requests` of its requests (None: all) in time order.

    `date` (`2023-08-21`) takes the rows of one day, of UTC where the file names zones. `time_scale_factor` (> 0)
    multiplies arrival times after the first arrival was made 0. Raises ValueError as `read_trace`, and FieldError of
    `date` where no row is of that day or the file has no dates, and of `time_scale_factor` where the last arrival is
    later than any run lasts.
    """
    trace = read_trace(trace_file, with_times=True, with_lengths=True)
    num_rows = len(trace.times)
    if date is not None:
        _keep_day(trace, date)
    of_day = "" if date is None else f" of {date}"
    num_unsorted = int((np.diff(trace.times) < 0).sum())
    taken = np.argsort(trace.times, kind="stable")[:num_requests]
    times, first = _from_first(trace, taken, time_scale_factor)
    notes = [f"{trace.label}: {len(taken):,} of {num_rows:,} rows{of_day}, arriving from 0.000 to {times[-1]:,.3f} s"]
    if len(trace.days):
        notes.append(f"arrival times begin at 0, the trace's {trace.instant_at(first)}")
    elif first:
        notes.append(f"arrival times begin at 0; {first:,.3f} was taken off each before scaling")
    if num_unsorted:
        notes.append(f"arrival times were not in order ({num_unsorted:,} rows earlier than the row before); sorted")
    if num_requests is not None and num_requests > len(trace.times):
        notes.append(f"{num_requests:,} requests were asked for, the trace has {len(trace.times):,}{of_day}")
    if trace.format.no_output == "one":
        shaping = replace(shaping, min_output_tokens=1)
    pairs, notes_on_lengths = shaping.apply(trace.prompts[taken], trace.outputs[taken])
    tenants = (
        [trace.tenant_names[i] for i in trace.tenants[taken].tolist()] if len(trace.tenants) else [""] * len(taken)
    )
    requests = [
        RequestSpec(str(i), time, num_prompt, num_output, tenant=tenant)
        for i, (time, (num_prompt, num_output), tenant) in enumerate(zip(times, pairs, tenants, strict=True))
    ]
    return Workload(Path(trace_file).stem, requests, [*notes, *trace.notes, *notes_on_lengths])


def trace_arrivals(
    trace_file: str | Path, *, start_time: str | None, end_time: str | None, time_scale_factor: float
) -> tuple[list[float], list[str]]:
    """Arrival times of the part of a trace with start_time <= time < end_time, and what is to be said of them.

    None sets no bound. Each is its distance from the first of the part, in seconds, times `time_scale_factor` (> 0).
    Where the trace tells times as numbers, the bounds' are seconds after 1970-01-01. Unlike Sarathi-Serve, an arrival
    at `start_time` itself belongs to the part, fractions of a second are kept (it cuts distances to whole seconds,
    which makes bursts of what was even), the first arrival is one (there the second is the first request's), and rows
    may stand in any order. Raises ValueError as `read_trace`, FieldError of `start_time`, or of `end_time` if it is
    alone, where the part is empty, and of `time_scale_factor` as `trace_workload`.
    """
    trace = read_trace(trace_file, with_times=True, with_lengths=False)
    num_rows = len(trace.times)
    earliest, latest = trace.times.min(), trace.times.max()
    mask = np.ones(num_rows, bool)
    if start_time is not None:
        mask &= trace.times >= trace.seconds_of(parse_instant(start_time))
    if end_time is not None:
        mask &= trace.times < trace.seconds_of(parse_instant(end_time))
    part = _part_text(start_time, end_time)
    if not mask.any():
        raise FieldError(
            "start_time" if start_time is not None else "end_time",
            f"{trace.label} has no arrival{part}; it has {num_rows:,} from {trace.instant_at(earliest)} to "
            f"{trace.instant_at(latest)}",
        )
    trace.keep(mask)
    order = np.argsort(trace.times, kind="stable")
    times, first = _from_first(trace, order, time_scale_factor)
    notes = [
        f"arrival times of {trace.label}: {len(times):,} of {num_rows:,}{part}, the first at "
        f"{trace.instant_at(first)}; scaled by {time_scale_factor:g} they last {times[-1]:,.3f} s"
    ]
    if num_unsorted := int((np.diff(trace.times) < 0).sum()):
        notes.append(f"arrival times were not in order ({num_unsorted:,} rows earlier than the row before); sorted")
    return times, notes


def _part_text(start_time: str | None, end_time: str | None) -> str:
    if start_time is not None and end_time is not None:
        return f" from {start_time} to before {end_time}"
    if end_time is not None:
        return f" before {end_time}"
    return "" if start_time is None else f" from {start_time} on"


def _keep_day(trace: Trace, date: str) -> None:
    if not len(trace.days):
        raise FieldError("date", f"{date} is not allowed; {trace.label} tells times without dates (null takes all)")
    mask = trace.days == parse_day(date)
    if not mask.any():
        raise FieldError("date", f"{date} is not allowed; {trace.label} has rows of {describe_days(trace)}")
    trace.keep(mask)


def _from_first(trace: Trace, order: np.ndarray, factor: float) -> tuple[list[float], float]:
    """Times of the rows in `order` after the first of them, times `factor`; and that first time."""
    sorted_times = trace.times[order]
    first = float(sorted_times[0])
    with np.errstate(over="ignore"):
        times = ((sorted_times - first) * factor).tolist()
    if times[-1] > MAX_ARRIVAL_TIME:
        raise FieldError(
            "time_scale_factor",
            f"{factor:g} is too large for {trace.path}; its last request would arrive {times[-1]:,.3g} s "
            f"after the first, at most {MAX_ARRIVAL_TIME:,} s are allowed (is it in seconds?)",
        )
    return times, first
