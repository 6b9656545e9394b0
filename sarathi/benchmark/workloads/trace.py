"""CSV traces of request lengths: how such a file is read, and the replay of one that has arrival times.

The columns are num_prefill_tokens and num_decode_tokens, for a replay also arrived_at in seconds; others are
ignored. Knows nothing of generators.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from sarathi.benchmark.workloads.spec import RequestSpec, Workload, check_at_least, check_positive

LENGTH_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
ARRIVAL_COLUMN = "arrived_at"


def read_csv_columns(path: str | Path, columns: Sequence[str]) -> list[list[float]]:
    """The named columns of a CSV file with a header, one list of numbers each, in file order.

    A byte-order mark and blank lines are skipped. Raises ValueError naming file, line and column for a file
    that is missing or empty, a missing column, and a value that is not a finite number of at least 0.
    """
    path = Path(path)
    values: list[list[float]] = [[] for _ in columns]
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _rows(csv.reader(file), path)
            _, header = next(rows, (0, []))
            places = _find_columns(header, columns, path)
            for line, row in rows:
                for place, name, out in zip(places, columns, values, strict=True):
                    out.append(_number(row[place] if place < len(row) else "", f"{path}, line {line}, column {name}"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a UTF-8 text file") from error
    if not values[0]:
        raise ValueError(f"{path}: no rows under the header {','.join(columns)}")
    return values


def _rows(reader: Iterator[list[str]], path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each row that is not blank."""
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row  # type: ignore[attr-defined]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from error  # type: ignore[attr-defined]


def _find_columns(header: list[str], columns: Sequence[str], path: Path) -> list[int]:
    names = [name.strip() for name in header]
    if not names:
        raise ValueError(f"{path}: empty; a header with {','.join(columns)} is needed")
    missing = [name for name in columns if name not in names]
    if missing:
        raise ValueError(f"{path}, line 1: column {', '.join(missing)} is missing; it has {', '.join(names)}")
    return [names.index(name) for name in columns]


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{where}: {text!r} is not a number") from None
    if not 0 <= value < math.inf:
        raise ValueError(f"{where}: {text.strip()} is not allowed; a number of at least 0")
    return value


def trace_workload(
    file: str | Path,
    *,
    num_requests: int | None = None,
    time_scale_factor: float = 1.0,
    prefill_scale_factor: float = 1.0,
    decode_scale_factor: float = 1.0,
) -> Workload:
    """Replay a trace at its own arrival times, the first `num_requests` of them in time order.

    Factors multiply arrival times and token counts; counts are then cut to integers. A prompt has at least one
    token; an output of 0 tokens stays one. Raises ValueError for bad settings and as `read_csv_columns`.
    """
    check_at_least("num_requests", num_requests, 1)
    check_positive("time_scale_factor", time_scale_factor)
    check_positive("prefill_scale_factor", prefill_scale_factor)
    check_positive("decode_scale_factor", decode_scale_factor)
    times, prefills, decodes = read_csv_columns(file, (ARRIVAL_COLUMN, *LENGTH_COLUMNS))
    num_unsorted = sum(b < a for a, b in pairwise(times))
    rows = sorted(zip(times, prefills, decodes, strict=True), key=lambda row: row[0])
    taken = rows[:num_requests]
    requests = [
        RequestSpec(
            str(i),
            time * time_scale_factor,
            max(1, int(prefill * prefill_scale_factor)),
            int(decode * decode_scale_factor),
        )
        for i, (time, prefill, decode) in enumerate(taken)
    ]
    first, last = requests[0].arrival_time, requests[-1].arrival_time
    notes = [f"{file}: {len(taken):,} of {len(rows):,} rows, arriving from {first:,.3f} to {last:,.3f} s"]
    if num_unsorted:
        notes.append(f"arrival times were not in order ({num_unsorted:,} rows earlier than the row before); sorted")
    if num_requests is not None and num_requests > len(rows):
        notes.append(f"{num_requests:,} requests were asked for, the trace has {len(rows):,}")
    if num_raised := sum(prefill * prefill_scale_factor < 1 for _, prefill, _ in taken):
        notes.append(f"{num_raised:,} prompts of 0 tokens were given 1 token")
    if num_empty := sum(request.num_output_tokens == 0 for request in requests):
        notes.append(f"{num_empty:,} requests have 0 output tokens and generate nothing")
    return Workload(Path(file).stem, requests, notes)
