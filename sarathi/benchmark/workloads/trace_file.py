"""Trace files: which formats are read, how one is recognised, and its rows as columns of numbers.

Knows nothing of requests; what becomes of lengths and times is the other modules' business.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from sarathi.benchmark.workloads.json_rows import is_json_lines, read_json_rows
from sarathi.csv_columns import Parser, read_header, read_rows
from sarathi.errors import shown
from sarathi.instants import DAY, day_text, instant_text, parse_day, parse_instant

LENGTH_LIMIT = 10**9
TIME_LIMIT = 10**19  # the time of day in nanoseconds is read too: only its distance from the first arrival counts
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class TraceFormat(NamedTuple):
    """A schema, recognised by its columns."""

    name: str  # empty for this program's own
    time: tuple[str, ...]  # columns of a row's arrival; of two, see `signs`
    lengths: tuple[str, ...]  # columns of prompt and output tokens; empty where it has arrivals only
    signs: tuple[int, ...] = (1, 1)  # the arrival is the sum of the time columns with these signs
    dated: str = ""  # the time column that holds a date, or date and time; empty where times are numbers only
    per_second: float = 1  # what a time of 1 second is
    tenant: str = ""  # a CSV column of each request's class that a file may have
    no_output: Literal["kept", "one", "failed"] = "kept"  # what a row with 0 output tokens is
    is_json: bool = False  # an object a line instead of CSV

    @property
    def title(self) -> str:
        return f"{', '.join((*self.time, *self.lengths))} ({self.name or 'replay'}{', JSON lines' * self.is_json})"


FORMATS = (
    TraceFormat("", ("arrived_at",), ("num_prefill_tokens", "num_decode_tokens"), tenant="tenant"),
    TraceFormat(
        "Sarathi-Serve", ("Date", "Time"), ("PromptTokenCount", "CompletionTokenCount"), dated="Date", no_output="one"
    ),
    TraceFormat(
        "BurstGPT", ("Timestamp",), ("Request tokens", "Response tokens"), tenant="Log Type", no_output="failed"
    ),
    TraceFormat("Azure LLM inference", ("TIMESTAMP",), ("ContextTokens", "GeneratedTokens"), dated="TIMESTAMP"),
    TraceFormat("Mooncake", ("timestamp",), ("input_length", "output_length"), per_second=1000, is_json=True),
    TraceFormat("invocations", ("arrival_time",), (), dated="arrival_time"),
    TraceFormat("Azure Functions", ("end_timestamp", "duration"), (), signs=(1, -1)),
)


@dataclass
class Trace:
    """Rows of a trace in file order: arrays of one length each, empty where they were not asked for.

    Times are seconds after the midnight before the first row, which began day `first_day` after 1970-01-01, or, where
    the format has no dates, numbers as they stand in the file, in seconds. `tenants[i]` is a place in `tenant_names`.
    """

    path: str
    format: TraceFormat
    times: np.ndarray
    days: np.ndarray  # after 1970-01-01; empty where the format has no dates
    prompts: np.ndarray
    outputs: np.ndarray
    tenants: np.ndarray
    tenant_names: list[str]
    first_day: int
    notes: list[str]  # what was left out

    @property
    def label(self) -> str:
        """The file as notes name it."""
        return f"{self.path} ({self.format.name})" if self.format.name else self.path

    def seconds_of(self, instant: tuple[int, float]) -> float:
        """An instant as `times` tell it."""
        day, seconds = instant
        return float((day - self.first_day) * DAY) + seconds

    def instant_at(self, time: float) -> str:
        """A time as text; of a trace without dates it is taken for seconds after 1970-01-01."""
        days, seconds = divmod(float(time), DAY)
        try:
            return instant_text(self.first_day + int(days), seconds)
        except (ValueError, OverflowError):  # no date that a calendar has
            return f"{time:,.3f} s"

    def keep(self, mask: np.ndarray) -> None:
        """Forget the rows where `mask` is false."""
        for name in ("times", "days", "prompts", "outputs", "tenants"):
            column = getattr(self, name)
            setattr(self, name, column[mask] if len(column) else column)


def read_trace(path: str | Path, *, with_times: bool, with_lengths: bool) -> Trace:
    """Read a trace of any format that has what is asked for; columns of the rest are not looked at.

    Requests that failed (no output in a format where that means it) are left out where lengths are read, and told.
    Raises ValueError, one line naming the file, for one that is none of them, and else as `read_rows`.
    """
    chosen, names = _recognise(path, with_times, with_lengths)
    columns = _columns(chosen, with_times, with_lengths)
    clock, classes = _Clock(is_day=len(chosen.time) > 1), _Classes()
    if with_times and with_lengths and chosen.tenant in names:
        columns = (*columns, chosen.tenant)
    limits = {name: LENGTH_LIMIT if name in chosen.lengths else TIME_LIMIT for name in columns}
    if chosen.is_json:
        rows = read_json_rows(path, columns, limits)
    else:
        parsers: dict[str, Parser] = {chosen.dated: clock, chosen.tenant: classes}
        rows = (values for _, values in read_rows(path, columns, limits, {k: v for k, v in parsers.items() if k}))
    flat = array("d")
    for values in rows:
        flat.extend(values)
    table = np.frombuffer(flat, dtype=np.float64).reshape(-1, len(columns))
    column = dict(zip(columns, table.T, strict=True))
    none = np.empty(0)
    trace = Trace(
        path=str(path),
        format=chosen,
        times=_times(chosen, column) if with_times else none,
        days=_days(column[chosen.dated], clock) if chosen.dated in columns else none,
        prompts=column[chosen.lengths[0]] if with_lengths else none,
        outputs=column[chosen.lengths[1]] if with_lengths else none,
        tenants=column[chosen.tenant].astype(np.int64) if chosen.tenant in columns else none,
        tenant_names=classes.names,
        first_day=clock.first_day or 0,
        notes=[],
    )
    if with_lengths and chosen.no_output == "failed":
        _leave_out_failed(trace)
    return trace


def known_formats(with_times: bool, with_lengths: bool) -> list[TraceFormat]:
    return [known for known in FORMATS if (known.lengths or not with_lengths) and (known.time or not with_times)]


def describe_days(trace: Trace) -> str:
    """The days that a trace has rows of: all of them if they are few, else the first and the last."""
    days = np.unique(trace.days).tolist()
    if len(days) <= 7:
        return ", ".join(day_text(day) for day in days)
    return f"{len(days):,} days from {day_text(days[0])} to {day_text(days[-1])}"


class _Clock:
    """Reads dates and times, or days alone, as seconds after the midnight before the first one read."""

    def __init__(self, is_day: bool) -> None:
        self.first_day: int | None = None
        self._is_day = is_day

    def __call__(self, text: str) -> float:
        day, seconds = (parse_day(text), 0.0) if self._is_day else parse_instant(text)
        if self.first_day is None:
            self.first_day = day
        return float((day - self.first_day) * DAY) + seconds


class _Classes:
    """Reads names as their places in the list of those read so far.

    White space and control characters, line breaks above all, become one blank: a name is a word of tables and logs.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._places: dict[str, float] = {}

    def __call__(self, text: str) -> float:
        place = self._places.get(text)
        if place is None:
            name = " ".join(_CONTROL_CHARACTERS.sub(" ", text).split())
            place = self._places.setdefault(name, float(len(self.names)))
            if place == len(self.names):
                self.names.append(name)
            self._places[text] = place
        return place


def _columns(known: TraceFormat, with_times: bool, with_lengths: bool) -> tuple[str, ...]:
    return (*(known.time if with_times else ()), *(known.lengths if with_lengths else ()))


def _recognise(path: str | Path, with_times: bool, with_lengths: bool) -> tuple[TraceFormat, Sequence[str]]:
    """The format of which the file has most columns, and the names of the file's columns."""
    known = known_formats(with_times, with_lengths)
    if is_json_lines(path):
        return next(k for k in known if k.is_json), ()
    names = read_header(path)
    if not names:
        raise ValueError(
            f"{path}: empty; a header with {','.join(_columns(known[0], with_times, with_lengths))} is needed"
        )

    def share(k: TraceFormat) -> float:
        wanted = _columns(k, with_times, with_lengths)
        return sum(name in names for name in wanted) / len(wanted)

    best = max((k for k in known if not k.is_json), key=share)
    if not share(best):
        formats = "; ".join(k.title for k in known)
        raise ValueError(f"{path}, line 1: no trace with the columns {shown(', '.join(names))} is known; {formats}")
    return best, names


def _times(known: TraceFormat, column: dict[str, np.ndarray]) -> np.ndarray:
    times = sum(sign * column[name] for sign, name in zip(known.signs, known.time, strict=False))
    return np.asarray(times) / known.per_second


def _days(seconds: np.ndarray, clock: _Clock) -> np.ndarray:
    return np.floor(seconds / DAY).astype(np.int64) + (clock.first_day or 0)


def _leave_out_failed(trace: Trace) -> None:
    failed = trace.outputs == 0
    num_failed = int(failed.sum())
    if num_failed == len(failed):
        raise ValueError(f"{trace.path}: all {num_failed:,} requests failed (0 {trace.format.lengths[1].lower()})")
    if num_failed:
        trace.keep(~failed)
        trace.notes.append(
            f"{num_failed:,} of {len(failed):,} requests failed (0 {trace.format.lengths[1].lower()}) and were left out"
        )
