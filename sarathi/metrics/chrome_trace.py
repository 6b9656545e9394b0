"""A sink that streams a run as Chrome trace JSON, for Perfetto (ui.perfetto.dev) or chrome://tracing.

Process 'engine' has a track for each round in flight (one, or several under pipeline parallelism) and counters;
process 'requests' has a span a request with its phases queued, prefill and decode. Memory use does not grow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sarathi.metrics.records import REQUEST_COLUMNS, ROUND_COLUMNS, RequestRow, RoundRow

_ENGINE, _REQUESTS = 1, 2  # process ids
_ROUND_ARGS = (
    "batch_execution_time",
    "batch_num_prefill_tokens",
    "batch_num_decode_tokens",
    "batch_size",
    "num_prefills",
    "token_budget",
    "num_preempted",
    "starved",
    "predicted_time",
    "reasons",
)
_REQUEST_ARGS = (
    "request_num_prefill_tokens",
    "request_num_decode_tokens",
    "request_num_restarts",
    "request_execution_time",
    "request_preemption_time",
    "slowdown",
    "finish_reason",
)


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


class ChromeTrace:
    """Writes `path`; while the run lasts the file is called `path`.part. Finished requests only have spans."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._part = self._path.with_name(self._path.name + ".part")
        self._file = open(self._part, "w", encoding="utf-8")
        self._track_ends: list[float] = []  # end of the last round on each track of the engine
        self._num_requests = 0
        names = [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
            for pid, name in ((_ENGINE, "engine"), (_REQUESTS, "requests"))
        ]
        self._file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        self._file.write(",\n".join(map(json.dumps, names)))

    def _write(self, events: list[dict[str, Any]]) -> None:
        self._file.write("".join([",\n" + json.dumps(event, allow_nan=False) for event in events]))

    def write_rounds(self, rows: Sequence[RoundRow]) -> None:
        for row in rows:
            record: dict[str, Any] = dict(zip(ROUND_COLUMNS, row, strict=True))
            start, end = record["scheduled_time"], record["end_time"]
            track = self._free_track(start, end)
            at = _microseconds(start)
            span = {"ph": "X", "name": f"round {record['step_id']}", "cat": "round", "pid": _ENGINE, "tid": track}
            span |= {"ts": at, "dur": _microseconds(end - start), "args": {k: record[k] for k in _ROUND_ARGS}}
            queue = {"waiting": record["num_waiting"], "running": record["num_running"]}
            blocks = {"used": record["num_used_blocks"]}
            self._write(
                [
                    span,
                    {"ph": "C", "name": "requests", "pid": _ENGINE, "ts": at, "args": queue},
                    {"ph": "C", "name": "KV blocks", "pid": _ENGINE, "ts": at, "args": blocks},
                ]
            )

    def _free_track(self, start: float, end: float) -> int:
        """The first track whose last round has ended; spans on one track must not overlap."""
        track = next((i for i, busy_until in enumerate(self._track_ends) if busy_until <= start), None)
        if track is None:
            track = len(self._track_ends)
            self._track_ends.append(end)
            label = {"name": f"rounds in flight, {track + 1}"}
            self._write([{"ph": "M", "name": "thread_name", "pid": _ENGINE, "tid": track, "args": label}])
        self._track_ends[track] = end
        return track

    def write_requests(self, rows: Sequence[RequestRow]) -> None:
        for row in rows:
            record: dict[str, Any] = dict(zip(REQUEST_COLUMNS, row, strict=True))
            if record["status"] != "finished":
                continue
            arrival = record["arrival_time"]
            started = arrival + record["request_scheduling_delay"]
            prefill_end = arrival + record["prefill_e2e_time"]
            end = arrival + record["request_e2e_time"]
            args = {name: record[name] for name in _REQUEST_ARGS}
            self._num_requests += 1
            self._write(
                self._span(f"request {record['request_id']}", arrival, end, args)
                + self._span("queued", arrival, started)
                + self._span("prefill", started, prefill_end)
                + self._span("decode", prefill_end, end)
            )

    def _span(self, name: str, start: float, end: float, args: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Begin and end of an asynchronous span: those of one id nest in a track of their own."""
        common = {"name": name, "cat": "request", "id": self._num_requests, "pid": _REQUESTS, "tid": 0}
        return [
            {"ph": "b", "ts": _microseconds(start), "args": args or {}, **common},
            {"ph": "e", "ts": _microseconds(end), **common},
        ]

    def close(self) -> None:
        self._file.write("\n]}\n")
        self._file.close()
        os.replace(self._part, self._path)
