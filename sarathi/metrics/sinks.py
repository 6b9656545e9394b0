"""Where records go: the protocol of a sink, files on disk, or nowhere.

A sink gets records in batches, in the order they arose. It computes nothing.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sarathi.metrics.chrome_trace import ChromeTrace
from sarathi.metrics.records import REQUEST_COLUMNS, ROUND_COLUMNS, RequestRow, RoundRow, RunData

TOKEN_GAP_COLUMNS = ("inter_token_latency", "count")


class Sink(Protocol):
    def write_rounds(self, rows: Sequence[RoundRow]) -> None:
        """Rounds in order, cells as in ROUND_COLUMNS."""
        ...

    def write_requests(self, rows: Sequence[RequestRow]) -> None:
        """Requests in the order they ended, cells as in REQUEST_COLUMNS."""
        ...

    def close(self) -> None:
        """The run is over; nothing is written after this."""
        ...


class NullSink:
    """Drops everything."""

    def write_rounds(self, rows: Sequence[RoundRow]) -> None:
        pass

    def write_requests(self, rows: Sequence[RequestRow]) -> None:
        pass

    def close(self) -> None:
        pass


def table_sinks(directory: Path | None, chrome_trace: bool) -> list[Sink]:
    """What writes a run's tables, and its Chrome trace if asked, into `directory`; None writes nothing."""
    if directory is None:
        return []
    return [CsvSink(directory), *([ChromeTrace(directory / "chrome_trace.json")] if chrome_trace else [])]


def _round_format() -> str:
    """A %-template for a row of rounds.csv: twice as fast as csv.writer, and no cell ever needs quoting."""
    cells = dict.fromkeys(ROUND_COLUMNS, "%d")
    cells |= dict.fromkeys(("scheduled_time", "end_time", "batch_execution_time", "inter_batch_delay"), "%.9f")
    cells |= dict.fromkeys(("gpu_mem_used_mb", "gpu_mem_free_mb", "cuda_allocated_mb", "cuda_reserved_mb"), "%.3f")
    cells |= dict.fromkeys(("prefill_chunks", "predicted_time", "target_time", "prefill_cap", "reasons"), "%s")
    return ",".join(cells.values()) + "\n"


class CsvSink:
    """Streams rounds.csv (times to the nanosecond) and requests.csv into `directory`.

    While the run lasts the tables are called *.csv.part, so a run that was cut short is seen as such; summary.json
    comes last of all.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._rounds = open(self._directory / "rounds.csv.part", "w", encoding="utf-8", newline="")
        self._requests = open(self._directory / "requests.csv.part", "w", encoding="utf-8", newline="")
        self._round_format = _round_format()
        self._request_writer = csv.writer(self._requests, lineterminator="\n")
        self._rounds.write(",".join(ROUND_COLUMNS) + "\n")
        self._request_writer.writerow(REQUEST_COLUMNS)

    def write_rounds(self, rows: Sequence[RoundRow]) -> None:
        template = self._round_format
        self._rounds.write("".join([template % row for row in rows]))

    def write_requests(self, rows: Sequence[RequestRow]) -> None:
        self._request_writer.writerows(rows)

    def close(self) -> None:
        for file in (self._rounds, self._requests):
            file.close()
            os.replace(file.name, file.name.removesuffix(".part"))


def write_end(directory: Path, summary: dict[str, Any], data: RunData) -> None:
    """What a run's folder gets beside its two tables: token_gaps.csv (to the microsecond), and last summary.json."""
    gaps, counts = data.token_gaps
    shown, places = np.unique(np.round(gaps, 6), return_inverse=True)
    sums = np.bincount(places, weights=counts, minlength=len(shown))
    rows = "".join([f"{gap:.6f},{count:d}\n" for gap, count in zip(shown, sums.astype(np.int64), strict=True)])
    write_text(directory / "token_gaps.csv", ",".join(TOKEN_GAP_COLUMNS) + "\n" + rows)
    write_json(directory / "summary.json", summary)


def write_json(path: Path, value: object) -> None:
    """Write `value` in one piece. NaN and infinity raise ValueError."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file in one piece: readers see the old one or the new one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
