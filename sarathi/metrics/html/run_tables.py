"""The tables of one run's report, from its summary or its columns. Knows no HTML."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from sarathi.metrics.headline import DISTRIBUTIONS, E2E, STATISTICS, TPOT, TTFT, value
from sarathi.metrics.html.figures import bars
from sarathi.metrics.html.page import NO_VALUE, Cell, Page, Value, number
from sarathi.metrics.run_folder import RunFolder

NUM_ROWS = 20
MAX_FILES = 200
MAX_CHUNKS_SHOWN = 60  # characters

# What is shown of a run's columns.
REQUEST_COLUMNS = (
    "request_id",
    "tenant",
    "slo_met",
    "replica_id",
    "arrival_time",
    "request_num_prefill_tokens",
    "request_num_decode_tokens",
    E2E,
    TTFT,
    TPOT,
    "request_waiting_time",
    "request_execution_time",
    "slowdown",
    "request_num_restarts",
)
ROUND_COLUMNS = (
    "step_id",
    "end_time",
    "batch_execution_time",
    "predicted_time",
    "target_time",
    "batch_num_prefill_tokens",
    "batch_num_decode_tokens",
    "prefill_chunks",
    "sum_decode_context_len",
    "prefill_processed_tokens",
)


def add_percentiles(page: Page, summary: Mapping[str, Any]) -> None:
    rows = [[one.label, *(scaled(one.of(summary, statistic)) for statistic in STATISTICS)] for one in DISTRIBUTIONS]
    page.add_table(
        ["", *(s.upper() if s[0] == "p" else s for s in STATISTICS)], rows, caption="Percentiles", sortable=False
    )


def add_slo_classes(page: Page, slo: Mapping[str, Any]) -> None:
    rows: list[list[Value]] = [
        [
            name,
            value(one, "num_with_target"),
            percent(value(one, "share_met")),
            percent(value(one, "share_ttft_met")),
            percent(value(one, "share_tpot_met")),
            value(one, "goodput_requests_per_s"),
        ]
        for name, one in [*slo["classes"].items(), ("all requests with a target", slo)]
    ]
    headers = ["class", "requests", "all targets met", "TTFT met", "TPOT met", "goodput, req/s"]
    page.add_table(headers, rows, caption="By class", sortable=len(rows) > 3)


def add_replicas(page: Page, replicas: Sequence[Mapping[str, Any]]) -> None:
    """One row for each replica's own summary."""
    rows: list[list[Value]] = [
        [
            float(i),
            value(one, "num_finished"),
            value(one, f"{E2E}.mean"),
            value(one, f"{E2E}.p99"),
            value(one, f"{TTFT}.p50"),
            value(one, f"{TTFT}.p99"),
            scaled(value(one, f"{TPOT}.mean"), 1e3),
            value(one, "output_tokens_per_s"),
            value(one, "num_rounds"),
            value(one, "num_preemptions"),
            value(one, "fairness.longest_wait"),
        ]
        for i, one in enumerate(replicas)
    ]
    headers = ["replica", "finished", "E2E mean s", "E2E P99 s", "TTFT P50 s", "TTFT P99 s", "TPOT mean ms"]
    headers += ["output tokens/s", "rounds", "preemptions", "longest wait s"]
    page.add_table(headers, rows, caption="Each replica")


def add_policies(page: Page, summary: Mapping[str, Any]) -> None:
    """What the chunk sizer and the gate gave as their reasons, and rounds without room for prefill."""
    reasons = summary.get("reasons", {})
    ordered = sorted(reasons.items(), key=lambda item: -(item[1] or 0))
    rows: list[list[Value]] = [[name, count] for name, count in ordered]
    if num_starved := value(summary, "num_starved_rounds"):
        rows.append(["rounds in which decodes took the whole budget while prompts waited", num_starved])
    if rows:
        page.add_table(["reason", "times"], rows, caption="What the policies decided")


def add_operators(page: Page, summary: Mapping[str, Any]) -> None:
    """Figures of shares, then tables of times, of operators that took some, the largest first."""
    by_title: dict[str, dict[str, Any]] = {}
    for title, key in (("Operators of the model", "operators"), ("The host's own work", "cpu_operators")):
        shares = {name: value(one, "share") or 0.0 for name, one in (summary.get(key) or {}).items()}
        names = sorted(filter(shares.get, shares), key=lambda name: -shares[name])
        if names:
            by_title[title] = {name: summary[key][name] for name in names}
    for title, operators in by_title.items():
        shares = {"share": np.array([100 * one["share"] for one in operators.values()])}
        figure = bars(list(operators), shares, "", "share (%)", "%{x}: %{y:.1f} %<extra></extra>")
        page.add_figure(figure, title=title, wide=len(by_title) == 1)
    statistics = ("mean", "p50", "p99", "max")
    for title, operators in by_title.items():
        rows: list[list[Value]] = [
            [name, percent(one["share"]), *(fixed(one[statistic], 3, 1e3) for statistic in statistics)]
            for name, one in operators.items()
        ]
        headers = ["operator", "share", "mean ms", "P50 ms", "P99 ms", "max ms"]
        page.add_table(headers, rows, caption=f"{title}, time a round")


def add_slowest_requests(page: Page, run: RunFolder) -> None:
    """The NUM_ROWS finished requests with the longest E2E time."""
    requests = run.requests
    places = _largest(requests[E2E])
    if not len(places):
        return
    columns: list[tuple[str, str, int, float]] = [  # header, column, decimals, factor
        ("arrival s", "arrival_time", 3, 1.0),
        ("prompt tokens", "request_num_prefill_tokens", 0, 1.0),
        ("output tokens", "request_num_decode_tokens", 0, 1.0),
        ("E2E s", E2E, 3, 1.0),
        ("TTFT s", TTFT, 3, 1.0),
        ("TPOT ms", TPOT, 2, 1e3),
        ("waiting s", "request_waiting_time", 3, 1.0),
        ("execution s", "request_execution_time", 3, 1.0),
        ("slowdown", "slowdown", 2, 1.0),
        ("preemptions", "request_num_restarts", 0, 1.0),
    ]
    if run.num_replicas > 1:
        columns.insert(0, ("replica", "replica_id", 0, 1.0))
    has_slo = bool(np.isfinite(requests["slo_met"]).any())
    has_tenant = any(requests["tenant"])
    rows = []
    for i in places:
        row: list[Value] = [_short(str(requests["request_id"][i]))]
        row += [_short(str(requests["tenant"][i]))] if has_tenant else []
        row += [fixed(float(requests[name][i]), decimals, factor) for _, name, decimals, factor in columns]
        row += [_verdict(float(requests["slo_met"][i]))] if has_slo else []
        rows.append(row)
    headers = ["request", *(["class"] if has_tenant else []), *(column[0] for column in columns)]
    headers += ["targets"] if has_slo else []
    page.add_table(headers, rows, caption=f"The {len(rows)} slowest requests by end-to-end time")


def add_worst_predictions(page: Page, run: RunFolder) -> None:
    """The NUM_ROWS rounds whose measured time was farthest, relatively, from what was predicted."""
    rounds = run.rounds
    predicted, measured = rounds["predicted_time"], rounds["batch_execution_time"]
    error = np.full(len(measured), np.nan)
    np.divide(predicted - measured, measured, out=error, where=measured > 0)
    places = _largest(np.abs(error))
    if not len(places):
        return
    rows: list[list[Value]] = [
        [
            Cell(f"{rounds['step_id'][i]:,.0f}", float(rounds["step_id"][i])),
            fixed(float(rounds["end_time"][i]), 3),
            fixed(float(predicted[i]), 2, 1e3),
            fixed(float(measured[i]), 2, 1e3),
            Cell(f"{100 * error[i]:+.1f} %", float(error[i]), "bad" if abs(error[i]) > 0.1 else ""),
            fixed(float(rounds["target_time"][i]), 1, 1e3),
            float(rounds["batch_num_prefill_tokens"][i]),
            Cell(_chunks(str(rounds["prefill_chunks"][i])), tone="muted"),
            float(rounds["batch_num_decode_tokens"][i]),
            float(rounds["sum_decode_context_len"][i]),
            float(rounds["prefill_processed_tokens"][i]),
        ]
        for i in places
    ]
    headers = ["round", "end s", "predicted ms", "measured ms", "error", "target ms", "prefill tokens", "chunks"]
    headers += ["decodes", "decode context", "prefill context"]
    page.add_table(headers, rows, caption=f"The {len(rows)} rounds with the worst prediction")


def add_files(page: Page, directory: Path) -> None:
    """What else lies in the run's folder, plots and replicas' folders too, as links."""
    found = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "report.html")
    rows: list[list[Value]] = []
    for path in found[:MAX_FILES]:
        name, size = path.relative_to(directory).as_posix(), path.stat().st_size
        href = "./" + quote(os.fsencode(name))
        rows.append([Cell(name, href=href), Cell(f"{number(size / 1e3, 3)} kB", float(size))])
    page.add_table(["file", "size"], rows)


def scaled(value: float | None, factor: float = 1.0) -> Value:
    """`value * factor` as a table's cell of four significant digits."""
    if value is None:
        return None
    return Cell(number(value, 4, factor), value)


def fixed(value: float, decimals: int, factor: float = 1.0) -> Value:
    """`value * factor` as a table's cell of so many decimals, comparable down a column."""
    return Cell(f"{value * factor:,.{decimals}f}", value) if np.isfinite(value) else None


def percent(share: float | None) -> Value:
    """A share from 0 to 1 as a table's cell."""
    return None if share is None else Cell(f"{100 * share:.1f} %", share)


def _largest(values: np.ndarray) -> np.ndarray:
    """Places of the NUM_ROWS largest finite values, largest first."""
    known = np.flatnonzero(np.isfinite(values))
    return known[np.argsort(-values[known], kind="stable")][:NUM_ROWS]


def _verdict(met: float) -> Cell:
    if not np.isfinite(met):
        return Cell(NO_VALUE)
    return Cell("met", tone="good") if met else Cell("missed", tone="bad")


def _chunks(text: str) -> str:
    return _short(text.replace(";", " + "), MAX_CHUNKS_SHOWN)


def _short(text: str, length: int = 80) -> str:
    return text if len(text) <= length else f"{text[: length - 2]} …"
