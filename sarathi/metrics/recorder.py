"""Turns what the engine tells it into records: a row a round, a row a request, and the run's summary.

It keeps compact columns for percentiles and plots, streams full rows to the sinks, and reads no clock. The cost
of `on_step` is paid every round, so nothing in it depends on the number of decodes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from math import nan

import numpy as np

from sarathi.core.admission import REFUSED_BY_CAP, REFUSED_BY_MIN_CHUNK, WARM_START
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.metrics.percentiles import InterTokenGaps
from sarathi.metrics.records import (
    FIRST_METRIC,
    LAST_METRIC,
    REQUEST_METRICS,
    ROUND_COLUMNS,
    RequestRow,
    RoundRow,
    RunData,
    request_row,
)
from sarathi.metrics.sinks import Sink
from sarathi.metrics.slo import SloCounts, slo_verdict, status_word
from sarathi.request import Request

ROWS_PER_WRITE = 1024

# Columns of ROUND_COLUMNS that stay in memory, and how.
_KEPT = {
    "scheduled_time": "d",
    "batch_execution_time": "d",
    "inter_batch_delay": "d",
    "batch_num_prefill_tokens": "I",
    "batch_num_decode_tokens": "I",
    "batch_size": "I",
    "num_waiting": "I",
    "num_running": "I",
    "predicted_time": "d",
    "target_time": "d",
}
_OPTIONAL = ("predicted_time", "target_time")  # kept columns with empty cells
_NO_REASONS = (0, 0, 0, "")


class Recorder:
    """The engine's only way to report. `metadata` (scheduler, device, simulated, seed, ...) heads the summary."""

    def __init__(self, sinks: Sequence[Sink], metadata: Mapping[str, object], replica_id: int = 0) -> None:
        self.replica_id = replica_id
        self._sinks = tuple(sinks)
        self._metadata = dict(metadata)
        self._round_rows: list[RoundRow] = []
        self._request_rows: list[RequestRow] = []
        self._kept = {name: array(code) for name, code in _KEPT.items()}
        self._end_times: array[float] = array("d")
        self._schedule_times: array[float] = array("d")
        self._request_metrics: dict[str, array[float]] = {name: array("d") for name in REQUEST_METRICS}
        self._gaps = InterTokenGaps(self._end_times)
        self._last_end: float | None = None
        self._num_by_status: dict[str, int] = {}
        self._num_preemptions = 0
        self._num_starved_rounds = 0
        self._reasons: dict[str, int] = {}
        self._slo: dict[str, SloCounts] = {}
        self._first_arrival: float | None = None
        self._first_ignored: str | None = None
        self._unfinished_waiting_time: float | None = None
        self._unfinished_scheduling_delay: float | None = None

    @property
    def num_ended(self) -> int:
        """Requests recorded so far."""
        return sum(self._num_by_status.values())

    def on_step(
        self,
        output: SchedulerOutput,
        result: StepResult,
        finished: Sequence[Request],
        now: float,
        schedule_time: float,
    ) -> None:
        """A round ended at `now` (engine's clock, seconds); `schedule_time` is what the host spent on it.

        `finished` are the requests that ended in it, aborted ones included. Rounds come in order of their ends.
        """
        num_decodes = len(output.decodes)
        num_prefills = len(output.prefills)
        num_prefill_tokens = output.num_prefill_tokens
        num_waiting = output.num_waiting
        token_budget = output.token_budget
        scheduled_time = output.scheduled_time
        last_end = self._last_end
        predicted_time = output.predicted_time
        used_mb, free_mb, allocated_mb, reserved_mb = output.memory
        self._round_rows.append(
            (
                output.step_id,
                self.replica_id,
                scheduled_time,
                now,
                result.execution_time,
                scheduled_time - last_end if last_end is not None and scheduled_time > last_end else 0.0,
                num_decodes + num_prefill_tokens,
                num_prefill_tokens,
                num_decodes,
                num_decodes + num_prefills,
                num_prefills,
                ";".join([str(num_tokens) for _, num_tokens in output.prefills]) if num_prefills else "",
                token_budget,
                output.sum_decode_context_len,
                output.max_decode_context_len,
                output.prefill_processed_tokens,
                output.max_prefill_processed_tokens,
                used_mb,
                free_mb,
                allocated_mb,
                reserved_mb,
                num_waiting,
                output.num_running,
                output.num_used_blocks,
                len(output.preempted_ids),
                1 if num_decodes >= token_budget and not num_prefills and (num_waiting or output.num_partial) else 0,
                "" if predicted_time is None else predicted_time,
                "" if output.target_time is None else output.target_time,
                output.num_candidates,
                "" if output.prefill_cap is None else output.prefill_cap,
                *(self._count_reasons(output.reasons) if output.reasons else _NO_REASONS),
            )
        )
        self._last_end = now
        self._end_times.append(now)
        self._schedule_times.append(schedule_time)
        for request in finished:
            self._record(request)
        if len(self._round_rows) >= ROWS_PER_WRITE:
            self._write()

    def on_ignored(self, request: Request) -> None:
        """A request was refused on arrival."""
        if self._first_ignored is None:
            self._first_ignored = f"request {request.request_id}: {request.ignored_reason}"
        self._record(request)

    def on_aborted(self, request: Request) -> None:
        """A request was aborted and no round reports it."""
        self._record(request)

    def close(self, now: float, unfinished: Iterable[Request] = ()) -> RunData:
        """Write out everything and return the run's columns. `unfinished` requests were left when it was cut."""
        for request in unfinished:
            self._record(request)
            started = request.first_scheduled_time if request.first_scheduled_time is not None else now
            delay = max(0.0, started - request.arrival_time)
            wait = max(delay, now - request.arrival_time - request.execution_time)
            self._unfinished_scheduling_delay = max(delay, self._unfinished_scheduling_delay or 0.0)
            self._unfinished_waiting_time = max(wait, self._unfinished_waiting_time or 0.0)
        self._write()
        for sink in self._sinks:
            sink.close()
        return self.data()

    def data(self) -> RunData:
        """The run's columns. After `close`: the arrays are views, and a recorder with views cannot grow."""
        rounds = {name: np.frombuffer(column, dtype=column.typecode) for name, column in self._kept.items()}
        rounds["batch_num_tokens"] = rounds["batch_num_prefill_tokens"] + rounds["batch_num_decode_tokens"]
        rounds["end_time"] = np.frombuffer(self._end_times)
        rounds["schedule_time"] = np.frombuffer(self._schedule_times)
        return RunData(
            metadata=self._metadata,
            rounds=rounds,
            requests={name: np.frombuffer(column) for name, column in self._request_metrics.items()},
            token_gaps=self._gaps.counted(),
            num_by_status=self._num_by_status,
            num_preemptions=self._num_preemptions,
            num_starved_rounds=self._num_starved_rounds,
            reasons=self._reasons,
            first_arrival_time=self._first_arrival,
            first_ignored=self._first_ignored,
            unfinished_waiting_time=self._unfinished_waiting_time,
            unfinished_scheduling_delay=self._unfinished_scheduling_delay,
            slo=self._slo,
        )

    def _count_reasons(self, reasons: dict[str, int]) -> tuple[int, int, int, str]:
        """The last four cells of a round."""
        for reason, count in reasons.items():
            self._reasons[reason] = self._reasons.get(reason, 0) + count
        return (
            reasons.get(REFUSED_BY_CAP, 0),
            reasons.get(REFUSED_BY_MIN_CHUNK, 0),
            reasons.get(WARM_START, 0),
            ";".join([f"{reason}:{count}" for reason, count in reasons.items()]),
        )

    def _record(self, request: Request) -> None:
        status = status_word(request)
        self._num_by_status[status] = self._num_by_status.get(status, 0) + 1
        if self._first_arrival is None or request.arrival_time < self._first_arrival:
            self._first_arrival = request.arrival_time
        verdict = slo_verdict(request)
        if verdict.met is not None:
            self._slo.setdefault(request.tenant, SloCounts()).add(verdict)
        self._request_rows.append(request_row(request, verdict, self.replica_id))
        if status == "finished":
            self._gaps.add(request.token_times)
        if len(self._request_rows) >= ROWS_PER_WRITE:
            self._write()

    def _write(self) -> None:
        """Hand buffered rows to the sinks and keep the columns that percentiles and plots need."""
        if self._round_rows:
            columns = dict(zip(ROUND_COLUMNS, zip(*self._round_rows, strict=True), strict=True))
            for name, kept in self._kept.items():
                kept.extend(columns[name] if name not in _OPTIONAL else [nan if c == "" else c for c in columns[name]])
            self._num_preemptions += sum(columns["num_preempted"])
            self._num_starved_rounds += sum(columns["starved"])
        finished = [row[FIRST_METRIC:LAST_METRIC] for row in self._request_rows if row[2] == "finished"]
        for name, column in zip(REQUEST_METRICS, zip(*finished, strict=True), strict=False):
            self._request_metrics[name].extend([np.nan if cell is None else cell for cell in column])
        for sink in self._sinks:
            if self._round_rows:
                sink.write_rounds(self._round_rows)
            if self._request_rows:
                sink.write_requests(self._request_rows)
        self._round_rows, self._request_rows = [], []
